"""One sample, two worlds: the outputs of models with it and of models without it, and which of
them the target is like.
"""

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd
from scipy.special import expit

from mia_nb import attacks, metrics
from mia_nb.attacks.likelihood import Fit, lira_fit, nig_fit
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.pairs import units
from mia_nb.plots import samples as pictures
from mia_nb.plots.style import LINES, row_of
from mia_nb.types import Signals
from mia_nb.widgets.explorer import (
    END,
    ROW,
    Explorer,
    View,
    buttons,
    chooser,
    count,
    dropdown,
    message,
    remarks,
    tick,
    with_layout,
    worded,
)
from mia_nb.widgets.pictures import NOT_MEASURABLE, number_text, with_interval
from mia_nb.widgets.stored import NOTHING, Source, list_of_sources, named

TITLE = "One sample, two worlds"
QUESTION = "What would this model output if it had not seen the image?"
# {name: (what `lira` calls it, degrees of freedom beyond those of the references)}
VARIANCES = {
    "global": ("global", np.inf),
    "shrunk": ("shrunk", 6.0),  # lira's weight of the shrunk variance
    "per sample": ("per_sample", 0.0),
}
DRAWS = 2000  # draws of fits given the references
THUMBNAILS = 24
DOTS = 3000  # drawn anew with every sample
KEPT = 1e8  # losses of one pool held in memory
RING = {  # scattergl as the points are: browsers lay those over all that is not
    "type": "scattergl",
    "mode": "markers",
    "marker": {"color": LINES[2], "symbol": "circle-open", "size": 17, "line": {"width": 3}},
    "hoverinfo": "skip",
    "unselected": {"marker": {"opacity": 1}},
}


class Evidence(NamedTuple):
    """What k references a side say about every sample of one target; columns of the signals,
    population included.
    """

    references: Signals
    phi: np.ndarray  # (N,) the target's margins
    gauss: Fit | None  # None: these references leave no variance
    student: Fit
    # (N,) log likelihood ratios of the Gaussians, of Student's t where there are none
    ratio: np.ndarray
    flags: list[str]


def sample(sources: Sequence[Source]) -> Explorer:
    """A sample's margin in the worlds with and without it, fitted from k references a side, and the
    target's own margin.

    Parameters:
        sources: stored results to choose a pool from, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    The sample whose worlds differ most comes first. Choose another by a click or by its number in
    the pool's images; a lasso shows who is in a subset. References come a pair at a time, the
    target's complementary model left out as in `attacks.score`; in designs without pairs k stands
    for 2k models. Fits: the Gaussians of `lira` with the chosen variance, Student's t of `nig`
    (Student-t LiRA), both of the margin averaged over queries (of the last time step for "steps").
    Intervals: 95 % given these references: v SS-scaled inverse chi-squared, m given v normal with
    variance v / n.

    Caveat: what one ratio proves depends on how often it errs, see `scores`.
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message(TITLE, NOTHING)

    def most(pool: str, target: int) -> int:
        return -(-len(references(pools[pool], target)[0]) // 2)

    def start(pool: str, target: int, sample: int) -> int:
        """Whose worlds differ most, unless the sample chosen before is here too."""
        source = pools[pool]
        if sample in source.numbers:
            return sample
        fit = evidence(source, target, most(pool, target), "shrunk").student
        apart = ((fit.centre[0] - fit.centre[1]) / fit.scale[1])[source.audited]
        return int(source.numbers[np.nanargmax(apart) if np.isfinite(apart).any() else 0])

    def draw(
        pool: str,
        target: int,
        attack: str,
        sample: int,
        k: int,
        variance: str,
        truth: bool,
        subset: tuple[int, ...],
    ) -> View:
        """The two worlds of the sample, and where it lies among all others."""
        source = pools[pool]
        x, y, member = plane(source, target, attack)
        column = source.column(sample)
        image = int(source.audited[column])
        is_member = bool(member[column])
        rows, everyone, _ = references(source, target)
        world = evidence(source, target, k, VARIANCES[variance][0])
        words, gap, ratio = compared(world, image, k, variance)
        lasso = np.flatnonzero(np.isin(source.numbers, subset))
        who = counted(x, y, lasso)
        figures = {
            "scatter": ringed(points(source, target, attack, truth), x[column], y[column], sample),
            "margins": margins(world, everyone, rows, image, is_member if truth else None),
            "image": picture(source, target, image),
            "traces": traces(source, tuple(rows.tolist()), image, target if truth else None),
            "subset": crowd(source, target, tuple(lasso.tolist()), who, truth),
        }
        row = {
            "who": f"sample {sample}",
            "label": source.class_of(image),
            **numbers(world, image, gap, ratio),
            "score": number_text(y[column], ".4g"),
        }
        about = f"labelled {source.class_of(image)}, target {verdict(source, target, image)}"
        sentence = f"Sample {sample} ({about}): {words}"
        if truth:
            row |= truths(world, source.audited, member, column)
            sentence += f"; is a {'member' if is_member else 'non-member'}"
        if len(lasso):
            row["lasso"] = who
        return View(
            sentence,
            figures,
            pd.DataFrame([row]),
            note(source, world, k, attack),
            margins_of_models(source, sample, None if truth else target),
        )

    # what holds for any pool; the rest is filled in by what they follow, whose complaints are
    # shown in place
    controls = {
        "pool": chooser("pool", pools),
        "target": dropdown("target", [0], 0),
        "attack": dropdown("attack"),
        "sample": W.IntText(description="sample", value=-1, **ROW),
        "k": count("k a side"),
        "variance": buttons("variance", list(VARIANCES), "shrunk"),
        "truth": tick("show the truth", True),
    }
    follow = {
        "target": {"options": lambda pool: pools[pool].targets[1:]},
        "attack": {"options": lambda pool: worded(pools[pool].attacks())},
        "k": {"max": most, "value": lambda pool: END},
        "sample": {"value": start},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question=QUESTION,
        rows=[["scatter", "margins"], ["image", "traces"], ["subset"]],
        follow=follow,
        pools=pools,
        heights={"scatter": 245, "margins": 245, "image": 238, "traces": 238},
        state={"subset": ()},
        clicks={"scatter": "sample"},
        lassos={"scatter": "subset"},
    )


@lru_cache(4)
def references(source: Source, target: int) -> tuple[np.ndarray, Signals, Signals]:
    """(models of the references pair by pair (R,), their signals, those of the target)."""
    members = source.signals.member[:, source.audited]
    others = source.signals.reference_rows(target)
    if members.all() or not members.any():
        raise ValueError(
            f"all models of {source.label} or none were trained on these samples: query images that"
            " only some saw"
        )
    if not len(others):
        raise ValueError(
            f"target {target} of {source.label} has no references but its complementary model:"
            " train two pairs or more"
        )
    others = others[np.argsort(units(members[others]), kind="stable")]
    alone = source.signals.select(models=[target]).hide()
    return others, source.signals.select(models=others), alone


@lru_cache(64)
def evidence(source: Source, target: int, k: int, variance: str) -> Evidence:
    """What the first k references a side say, and why where they say less."""
    _, everyone, alone = references(source, target)
    others = everyone.select(models=slice(0, 2 * k))
    combine = "last" if others.query_kind == "steps" else "margin"
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        phi, student = nig_fit(alone, others, combine=combine)
        flags = [str(w.message) for w in raised]
        gauss = None
        try:
            gauss = lira_fit(alone, others, variance=variance, combine=combine)[1]
        except ValueError as error:  # one reference a side
            flags = [str(error)]
    return Evidence(others, phi, gauss, student, (gauss or student).log_ratio(phi), flags)


def plane(source: Source, target: int, attack: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores of the loss attack and of this one, membership), (N,) each, of one target."""
    loss = source.scores("loss")
    scores = source.scores(attack)
    row = row_of(scores, target)
    return loss.value[row], scores.value[row], scores.member[row]


@lru_cache(16)
def points(source: Source, target: int, attack: str, truth: bool) -> dict:
    """The scatter of a target's scores, without the sample's mark."""
    x, y, member = plane(source, target, attack)
    figure = pictures.score_points(
        x,
        y,
        member if truth else None,
        names=(attacks.in_words("loss"), attacks.in_words(attack)),
        numbers=source.numbers,
        points=DOTS,
    )
    same = f"{source.label} {target} {attack}"  # zoom and lasso stay while samples change
    axes = {name: figure["layout"][name] | {"uirevision": same} for name in ("xaxis", "yaxis")}
    return with_layout(figure, **axes, selectionrevision=same, modebar={"uirevision": same})


@lru_cache(8)
def picture(source: Source, target: int, image: int) -> dict:
    """The sample's image, with its label and how the target takes it."""
    if source.images is None:
        return pictures.empty("no images are stored with these signals")
    sure = expit(source.signals.margin[target, :, image]).mean()
    words = (
        f"labelled {source.class_of(image)}; target {verdict(source, target, image)},"
        f" p = {sure:.3g}"
    )
    return pictures.picture(source.images[image], words)


@lru_cache(8)
def crowd(source: Source, target: int, lasso: tuple[int, ...], who: str, truth: bool) -> dict:
    """The images of those in a lasso."""
    if not lasso:
        return pictures.empty(
            "Draw a lasso around points of the scatter to see who they are", height=90
        )
    images = source.audited[list(lasso)]
    numbers = source.numbers[list(lasso)]
    marks = np.full(len(images), "")
    if truth:
        member = source.signals.member[target, images]
        marks = np.where(member, "● ", "◇ ")
        who += f", {member.sum():,} members (●) and {(~member).sum():,} non-members (◇)"
    if source.images is None:
        return pictures.empty(f"{who}; no images are stored with these signals")
    thumbnails = np.linspace(0, len(images) - 1, min(len(images), THUMBNAILS)).astype(int)
    if len(thumbnails) < len(images):
        who += f"; {len(thumbnails)} of them"
    words = []
    for i in thumbnails:
        name = pictures.short(source.class_of(images[i]))
        words.append(f"{marks[i]}{numbers[i]}<br>{name}")
    return pictures.sheet(source.images[images[thumbnails]], words, numbers[thumbnails], who)


def counted(x: np.ndarray, y: np.ndarray, lasso: np.ndarray) -> str:
    """How many a lasso holds: of those that are drawn, where not all are."""
    drawn, total = pictures.thinned(x, y, DOTS)
    if len(drawn) < total and np.isin(lasso, drawn).all():
        return f"{len(lasso):,} of the {len(drawn):,} drawn (of {total:,})"
    return f"{len(lasso):,} samples"


def possible(fit: Fit, phi: float, freedom: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """(2, 2): 95 % intervals of m_in - m_out and of the log likelihood ratio at phi, for the
    Gaussians of one sample.

    Draws v = s^2 freedom / chi2(freedom) and m ~ N(centre, v / n) for both worlds, freedom (2,)
    above 0, infinite where v is known.
    """
    rng = np.random.default_rng(seed)
    is_known = np.isinf(freedom)[:, None]
    degrees = np.where(is_known, 1.0, freedom[:, None])
    factor = np.where(is_known, 1.0, degrees / rng.chisquare(degrees, (2, DRAWS)))
    scale = fit.scale * np.sqrt(factor)
    centre = fit.centre + scale / np.sqrt(fit.n) * rng.standard_normal((2, DRAWS))
    ratio = Fit(centre, scale, np.full_like(scale, np.inf), fit.n).log_ratio(phi)
    return np.quantile([centre[0] - centre[1], ratio], [0.025, 0.975], axis=1).T


def compared(world: Evidence, image: int, k: int, variance: str) -> tuple[str, str, str]:
    """(how the worlds differ in words, how far they lie apart, the log likelihood ratio), with
    intervals where they can be told.
    """
    fit = (world.gauss or world.student).of(image)
    gap = float(fit.centre[0, 0] - fit.centre[1, 0])
    ratio = float(world.ratio[image])
    n = fit.n[:, 0]
    freedom = n - 1.0 + VARIANCES[variance][1]
    spans = np.full((2, 2), np.nan)
    if world.gauss and n.min() > 0 and freedom.min() > 0:
        spans = possible(fit, float(world.phi[image]), freedom)
    low, high, least, most = spans.ravel()
    gap_cell = with_interval(gap, low, high, ".3g")
    ratio_cell = with_interval(ratio if world.gauss else np.nan, least, most, ".3g")

    if n.min() == 0:
        words = f"none of these references is {'OUT' if n[0] else 'IN'}, so there is no ratio: take"
        return f"{words} more", gap_cell, ratio_cell
    who = f"{n[0]} IN and {n[1]} OUT references"
    if n[0] == n[1] == k:
        who = f"k = {k} reference{'s' * (k > 1)} a side"
    says = "the log likelihood ratio is" if world.gauss else "only Student-t LiRA gives a ratio,"
    words = f"IN and OUT models differ by {gap:.2g} nats"
    if np.isnan(least):
        words += f"; from {who} {says} {ratio:.2g}, no interval: one reference on a side"
        return words, gap_cell, ratio_cell
    looks = "undecided"
    if least > 0 or most < 0:
        looks = "looks like a member" if ratio > 0 else "looks like a non-member"
    words += f" [{low:.2g}, {high:.2g}]; from {who} {says} {ratio:.2g} [{least:.2g}, {most:.2g}]"
    return f"{words}: {looks}", gap_cell, ratio_cell


def verdict(source: Source, target: int, image: int) -> str:
    """Whether the target is right on a sample."""
    correct = source.signals.correct[target : target + 1, :, image : image + 1]
    right = over_queries(correct, source.signals.query_kind)[0, 0]
    return {1: "right", 0: "wrong"}.get(right, f"right in {right:.0%} of queries")


def margins_of_models(source: Source, sample: int, hidden: int | None) -> pd.DataFrame:
    """What each model says of a sample, for CSV; whether the `hidden` target trained on it is left
    out.
    """
    image = source.audited[source.column(sample)]
    margin = over_queries(source.signals.margin[:, :, image : image + 1], source.signals.query_kind)
    member = pd.Series(source.signals.member[:, image], dtype=object)
    if hidden is not None:
        member[hidden] = None
    return pd.DataFrame(
        {
            "sample": sample,
            "label": source.class_of(image),
            "model": source.rows,
            "margin": margin[:, 0],
            "member": member,
        }
    )


def numbers(world: Evidence, image: int, gap: str, ratio: str) -> dict:
    """The table's row about one sample."""
    fit = world.student.of(image)
    phi = float(world.phi[image])
    return {
        "target's margin": f"{phi:.3f}",
        "confidence": f"{expit(phi):.2%}",
        "n IN": str(fit.n[0, 0]),
        "n OUT": str(fit.n[1, 0]),
        "m IN - m OUT": gap,
        "log LR": ratio,
        "log LR (Student-t LiRA)": number_text(float(fit.log_ratio(phi)[0])),
    }


def truths(world: Evidence, audited: np.ndarray, member: np.ndarray, column: int) -> dict:
    """What the table says where membership may be seen."""
    ratio = world.ratio[audited]
    cell = NOT_MEASURABLE
    others = ratio[~member & np.isfinite(ratio)]
    if len(others) and not np.isnan(ratio[column]):
        high = int((others >= ratio[column]).sum())
        low, top = metrics.clopper_pearson(high, len(others))
        cell = f"{high:,} of {len(others):,} [{low:.2%}, {top:.2%}]"
    return {"non-members as high": cell, "member": "yes" if member[column] else "no"}


def note(source: Source, world: Evidence, k: int, attack: str) -> str:
    """What the numbers rest on."""
    refs = world.references
    queries = refs.margin.shape[1]
    steps = refs.query_kind == "steps"
    unpaired = not (refs.member.sum(0) == k)[source.audited].all()
    return remarks(
        {
            source.lacks: source.lacks,
            "95 % intervals given these references": True,
            "the target's complementary model is no reference": True,
            f"no complementary pairs: k = {k} stands for {len(refs.margin)} models, shared out by"
            " chance": unpaired,
            "margins after the last time step": queries > 1 and steps,
            f"margins are means of {queries} queries": queries > 1 and not steps,
            "losses: references that trained on it, dashed and shaded all members; non-members"
            " have no training loss": True,
            f"score: {attacks.in_words(attack)} with all references; what one ratio proves depends"
            " on how often it errs: see Scores and ROC": True,
        },
        world.flags,
    )


def ringed(points: dict, x: float, y: float, sample: int) -> dict:
    """The scatter with a ring around the sample; an empty one where it has no place."""
    place = {"x": [], "y": []}
    if np.isfinite([x, y]).all():
        place = {"x": [float(x)], "y": [float(y)]}
    ring = RING | place | {"name": f"sample {sample}"}
    return points | {"data": [*points["data"], ring]}


def margins(
    world: Evidence, everyone: Signals, rows: np.ndarray, image: int, trained: bool | None
) -> dict:
    """The sample's margins by its references, the fits, and the target's own margin."""
    values = over_queries(everyone.margin[:, :, [image]], everyone.query_kind)[:, 0]
    member = everyone.member[:, image]
    phi = float(world.phi[image])
    # of all references: the axis stays while k grows
    low = min(values.min(), phi)
    high = max(values.max(), phi)
    span = (low - 0.25 * (high - low) - 0.1, high + 0.25 * (high - low) + 0.1)
    curves = []
    for name, dash, fits in (
        ("Gaussian", "dash", world.gauss),
        ("Student-t LiRA", "dot", world.student),
    ):
        if fits is None:
            continue
        fit = fits.of(image)
        if not np.isfinite(fit.centre).any():
            continue
        # a narrow peak is drawn too
        near = np.nan_to_num(fit.centre + fit.scale * np.linspace(-4, 4, 61), nan=low).ravel()
        x = np.sort(np.concatenate([np.linspace(*span, 121), np.clip(near, *span)]))
        inside, outside = np.exp(fit.log_density(x))
        curves.append(pictures.Curve(name, dash, x, inside, outside))
    used = slice(len(world.references.margin))
    inside = member[used].sum()
    outside = (~member[used]).sum()
    return pictures.two_worlds(
        values[used],
        member[used],
        f"{inside} IN and {outside} OUT references; the target at {phi:.2f}",
        numbers=rows[used],
        target=phi,
        trained=trained,
        curves=curves,
        span=span,
    )


@lru_cache(2)  # for all explorers together: each entry may take 400 MB
def losses_of(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """(log losses (M, E, N) of as many models as memory should hold, quartiles of all members'
    losses (3, E)), or None.
    """
    first = source.trace(0)
    if first is None:
        return None
    models = min(len(source.signals.margin), max(1, int(KEPT / first.size)))
    losses = np.stack([source.trace(model) for model in range(models)])
    trained = [log[:, ~np.isnan(log).all(0)] for log in losses]
    quartiles = [np.nanquantile(log, [0.25, 0.5, 0.75], axis=1) for log in trained]
    return losses, np.exp(np.mean(quartiles, axis=0))


@lru_cache(8)
def traces(source: Source, rows: tuple[int, ...], image: int, target: int | None = None) -> dict:
    """Losses of the references that trained on the sample; the target's own where its membership
    may be seen.
    """
    losses = losses_of(source)
    if losses is None:
        return pictures.empty("no training losses are stored with this pool")
    logs, everyone = losses
    all_lines = np.exp(logs[:, :, image])
    # an epoch that leaves out an incomplete batch leaves a gap
    trained = ~np.isnan(all_lines).all(1)
    lines = all_lines[[row for row in rows if row < len(all_lines) and trained[row]]]
    target_line = None
    if target is not None and target < len(all_lines) and trained[target]:
        target_line = all_lines[target]
    ended = lines[:, -1][~np.isnan(lines[:, -1])]
    here_text = f"{np.median(ended):.2g} here" if len(ended) else "no reference trained on it"
    return pictures.sample_traces(
        lines,
        everyone,
        f"loss in the last epoch: {here_text}, {everyone[1, -1]:.2g} for the median member",
        own=target_line,
    )
