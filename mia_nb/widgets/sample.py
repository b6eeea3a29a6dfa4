"""One sample, two worlds: the outputs of models that trained on it and of models that did not, and
which of them the target resembles.
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
from mia_nb.attacks.fits import Fit, lira_fit, nig_fit
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.pairs import units
from mia_nb.plots import samples as pictures
from mia_nb.plots.scores import row_of
from mia_nb.plots.style import LINES
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
DOTS = 3000  # points of the scatter, which is sent again with every sample
KEPT = 1e8  # largest number of losses of one pool in memory
RING = {  # scattergl like the points: browsers draw scattergl above all other traces
    "type": "scattergl",
    "mode": "markers",
    "marker": {"color": LINES[2], "symbol": "circle-open", "size": 17, "line": {"width": 3}},
    "hoverinfo": "skip",
    "unselected": {"marker": {"opacity": 1}},
}


class Evidence(NamedTuple):
    """What k references a side say about every sample of one target, as arrays over the columns of
    the signals, population included.
    """

    references: Signals
    phi: np.ndarray  # (N,) the target's margins
    gauss: Fit | None  # None: too few references for a variance
    student: Fit
    # (N,) log likelihood ratios of the Gaussians, or of Student's t where `gauss` is None
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

    def largest_k(pool: str, target: int) -> int:
        """Half the number of references, rounded up."""
        models, _, _ = references(pools[pool], target)
        return -(-len(models) // 2)

    def first_sample(pool: str, target: int, sample: int) -> int:
        """The sample chosen before, if this pool has it; else the one whose worlds differ most."""
        source = pools[pool]
        if sample in source.numbers:
            return sample
        fit = evidence(source, target, largest_k(pool, target), "shrunk").student
        distance = ((fit.centre[0] - fit.centre[1]) / fit.scale[1])[source.audited]
        column = np.nanargmax(distance) if np.isfinite(distance).any() else 0
        return int(source.numbers[column])

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
        """The two worlds of the sample, and its place among all others."""
        source = pools[pool]
        x, y, member = scatter_values(source, target, attack)
        column = source.column(sample)
        image = int(source.audited[column])
        is_member = bool(member[column])
        rows, all_references, _ = references(source, target)
        world = evidence(source, target, k, VARIANCES[variance][0])
        result, gap, ratio = result_texts(world, image, k, variance)
        lasso = np.flatnonzero(np.isin(source.numbers, subset))
        lasso_size = lasso_size_text(x, y, lasso)
        scatter = points(source, target, attack, truth)
        figures = {
            "scatter": with_ring(scatter, x[column], y[column], sample),
            "margins": margins(world, all_references, rows, image, is_member if truth else None),
            "image": picture(source, target, image),
            "traces": traces(source, tuple(rows.tolist()), image, target if truth else None),
            "subset": lasso_sheet(source, target, tuple(lasso.tolist()), lasso_size, truth),
        }
        row = {
            "who": f"sample {sample}",
            "label": source.class_of(image),
            **number_cells(world, image, gap, ratio),
            "score": number_text(y[column], ".4g"),
        }
        facts = f"labelled {source.class_of(image)}, target {right_or_wrong(source, target, image)}"
        sentence = f"Sample {sample} ({facts}): {result}"
        if truth:
            row |= truth_cells(world, source.audited, member, column)
            sentence += f"; is a {'member' if is_member else 'non-member'}"
        if len(lasso):
            row["lasso"] = lasso_size
        return View(
            sentence,
            figures,
            pd.DataFrame([row]),
            note(source, world, k, attack),
            margins_of_models(source, sample, None if truth else target),
        )

    # Only what holds for any pool stands here. `follow` fills in the rest, and its errors are shown
    # in place.
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
        "k": {"max": largest_k, "value": lambda pool: END},
        "sample": {"value": first_sample},
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
    """(indices of the reference models, pair by pair (R,), their signals, the target's signals)."""
    members = source.signals.member[:, source.audited]
    models = source.signals.reference_rows(target)
    if members.all() or not members.any():
        raise ValueError(
            f"all models of {source.label} or none were trained on these samples: query images that"
            " only some saw"
        )
    if not len(models):
        raise ValueError(
            f"target {target} of {source.label} has no references but its complementary model:"
            " train two pairs or more"
        )
    models = models[np.argsort(units(members[models]), kind="stable")]
    target_signals = source.signals.select(models=[target]).hide()
    return models, source.signals.select(models=models), target_signals


@lru_cache(64)
def evidence(source: Source, target: int, k: int, variance: str) -> Evidence:
    """What the first k references a side say; its flags are the warnings of the fits."""
    _, all_references, target_signals = references(source, target)
    used = all_references.select(models=slice(0, 2 * k))
    combine = "last" if used.query_kind == "steps" else "margin"
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        phi, student = nig_fit(target_signals, used, combine=combine)
        flags = [str(w.message) for w in raised]
        gauss = None
        try:
            _, gauss = lira_fit(target_signals, used, variance=variance, combine=combine)
        except ValueError as error:  # one reference a side
            flags = [str(error)]
    return Evidence(used, phi, gauss, student, (gauss or student).log_ratio(phi), flags)


def scatter_values(
    source: Source, target: int, attack: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores of the loss attack and of this one, membership), (N,) each, of one target."""
    loss = source.scores("loss")
    scores = source.scores(attack)
    row = row_of(scores, target)
    return loss.value[row], scores.value[row], scores.member[row]


@lru_cache(16)
def points(source: Source, target: int, attack: str, truth: bool) -> dict:
    """The scatter of a target's scores, without the sample's mark."""
    x, y, member = scatter_values(source, target, attack)
    figure = pictures.score_points(
        x,
        y,
        member if truth else None,
        names=(attacks.in_words("loss"), attacks.in_words(attack)),
        numbers=source.numbers,
        points=DOTS,
    )
    # zoom and lasso stay as long as this key does, so while only the sample changes
    key = f"{source.label} {target} {attack}"
    axes = {name: figure["layout"][name] | {"uirevision": key} for name in ("xaxis", "yaxis")}
    return with_layout(figure, **axes, selectionrevision=key, modebar={"uirevision": key})


@lru_cache(8)
def picture(source: Source, target: int, image: int) -> dict:
    """The sample's image, with its label, and the target's prediction and confidence."""
    if source.images is None:
        return pictures.empty("no images are stored with these signals")
    confidence = expit(source.signals.margin[target, :, image]).mean()
    caption = (
        f"labelled {source.class_of(image)}; target {right_or_wrong(source, target, image)},"
        f" p = {confidence:.3g}"
    )
    return pictures.picture(source.images[image], caption)


@lru_cache(8)
def lasso_sheet(
    source: Source, target: int, lasso: tuple[int, ...], caption: str, truth: bool
) -> dict:
    """The images of the samples in a lasso, under a caption that starts with how many they are."""
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
        caption += f", {member.sum():,} members (●) and {(~member).sum():,} non-members (◇)"
    if source.images is None:
        return pictures.empty(f"{caption}; no images are stored with these signals")
    thumbnails = np.linspace(0, len(images) - 1, min(len(images), THUMBNAILS)).astype(int)
    if len(thumbnails) < len(images):
        caption += f"; {len(thumbnails)} of them"
    labels = []
    for i in thumbnails:
        name = pictures.short(source.class_of(images[i]))
        labels.append(f"{marks[i]}{numbers[i]}<br>{name}")
    return pictures.sheet(source.images[images[thumbnails]], labels, numbers[thumbnails], caption)


def lasso_size_text(x: np.ndarray, y: np.ndarray, lasso: np.ndarray) -> str:
    """How many samples a lasso holds, and of how many points where the scatter draws only some."""
    drawn, total = pictures.thinned(x, y, DOTS)
    if len(drawn) < total and np.isin(lasso, drawn).all():
        return f"{len(lasso):,} of the {len(drawn):,} drawn (of {total:,})"
    return f"{len(lasso):,} samples"


def intervals_of_fit(fit: Fit, phi: float, freedom: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """95 % intervals of m_in - m_out and of the log likelihood ratio at phi, for the Gaussians of
    one sample; (2, 2), a row per interval.

    For both worlds v = s^2 freedom / chi2(freedom) and m ~ N(centre, v / n) are drawn. freedom
    (2,): the degrees of freedom of each world, above 0, infinite where v is known.
    """
    rng = np.random.default_rng(seed)
    is_known = np.isinf(freedom)[:, None]
    degrees = np.where(is_known, 1.0, freedom[:, None])
    factor = np.where(is_known, 1.0, degrees / rng.chisquare(degrees, (2, DRAWS)))
    scale = fit.scale * np.sqrt(factor)
    centre = fit.centre + scale / np.sqrt(fit.n) * rng.standard_normal((2, DRAWS))
    ratio = Fit(centre, scale, np.full_like(scale, np.inf), fit.n).log_ratio(phi)
    return np.quantile([centre[0] - centre[1], ratio], [0.025, 0.975], axis=1).T


def result_texts(world: Evidence, image: int, k: int, variance: str) -> tuple[str, str, str]:
    """(the result in words, m_in - m_out, the log likelihood ratio), the two numbers as text, with
    their intervals where there are enough references.
    """
    fit = (world.gauss or world.student).of(image)
    gap = float(fit.centre[0, 0] - fit.centre[1, 0])
    ratio = float(world.ratio[image])
    n = fit.n[:, 0]
    n_in, n_out = n
    freedom = n - 1.0 + VARIANCES[variance][1]
    intervals = np.full((2, 2), np.nan)
    if world.gauss and n.min() > 0 and freedom.min() > 0:
        intervals = intervals_of_fit(fit, float(world.phi[image]), freedom)
    (gap_low, gap_high), (ratio_low, ratio_high) = intervals
    gap_cell = with_interval(gap, gap_low, gap_high, ".3g")
    gaussian_ratio = ratio if world.gauss else np.nan
    ratio_cell = with_interval(gaussian_ratio, ratio_low, ratio_high, ".3g")

    if n.min() == 0:
        side = "OUT" if n_in else "IN"
        words = f"none of these references is {side}, so there is no ratio: take more"
        return words, gap_cell, ratio_cell
    used = f"{n_in} IN and {n_out} OUT references"
    if n_in == n_out == k:
        used = f"k = {k} reference{'s' * (k > 1)} a side"
    subject = "the log likelihood ratio is" if world.gauss else "only Student-t LiRA gives a ratio,"
    gap_words = f"IN and OUT models differ by {gap:.2g} nats"
    ratio_words = f"from {used} {subject} {ratio:.2g}"
    if np.isnan(ratio_low):
        words = f"{gap_words}; {ratio_words}, no interval: one reference on a side"
        return words, gap_cell, ratio_cell
    gap_words += f" [{gap_low:.2g}, {gap_high:.2g}]"
    ratio_words += f" [{ratio_low:.2g}, {ratio_high:.2g}]"
    looks = "undecided"
    if ratio_low > 0 or ratio_high < 0:
        looks = "looks like a member" if ratio > 0 else "looks like a non-member"
    return f"{gap_words}; {ratio_words}: {looks}", gap_cell, ratio_cell


def right_or_wrong(source: Source, target: int, image: int) -> str:
    """Whether the target classifies a sample correctly, in words; the share of queries if it does
    so in some only.
    """
    correct = source.signals.correct[target : target + 1, :, image : image + 1]
    share = over_queries(correct, source.signals.query_kind)[0, 0]
    if share == 1:
        return "right"
    if share == 0:
        return "wrong"
    return f"right in {share:.0%} of queries"


def margins_of_models(source: Source, sample: int, hidden: int | None) -> pd.DataFrame:
    """Every model's margin and membership of a sample, for CSV. The membership of the model
    `hidden` is left empty.
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


def number_cells(world: Evidence, image: int, gap: str, ratio: str) -> dict[str, str]:
    """The cells of the table with the numbers of one sample, by column."""
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


def truth_cells(
    world: Evidence, audited: np.ndarray, member: np.ndarray, column: int
) -> dict[str, str]:
    """The cells that the table has where membership is shown, by column."""
    ratio = world.ratio[audited]
    cell = NOT_MEASURABLE
    non_members = ratio[~member & np.isfinite(ratio)]
    if len(non_members) and not np.isnan(ratio[column]):
        as_high = int((non_members >= ratio[column]).sum())
        low, high = metrics.clopper_pearson(as_high, len(non_members))
        cell = f"{as_high:,} of {len(non_members):,} [{low:.2%}, {high:.2%}]"
    return {"non-members as high": cell, "member": "yes" if member[column] else "no"}


def note(source: Source, world: Evidence, k: int, attack: str) -> str:
    """The remarks below the table: which references, queries and intervals the numbers rest on."""
    models, queries, _ = world.references.margin.shape
    steps = world.references.query_kind == "steps"
    unpaired = not (world.references.member.sum(0) == k)[source.audited].all()
    return remarks(
        {
            source.lacks: source.lacks,
            "95 % intervals given these references": True,
            "the target's complementary model is no reference": True,
            f"no complementary pairs: k = {k} stands for {models} models, shared out by"
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


def with_ring(points: dict, x: float, y: float, sample: int) -> dict:
    """The scatter with a ring around the sample, without points where x or y is not finite."""
    place = {"x": [], "y": []}
    if np.isfinite([x, y]).all():
        place = {"x": [float(x)], "y": [float(y)]}
    ring = RING | place | {"name": f"sample {sample}"}
    return points | {"data": [*points["data"], ring]}


def margins(
    world: Evidence, all_references: Signals, rows: np.ndarray, image: int, trained: bool | None
) -> dict:
    """The sample's margins by its references, the fits, and the target's own margin."""
    values = over_queries(all_references.margin[:, :, [image]], all_references.query_kind)[:, 0]
    member = all_references.member[:, image]
    phi = float(world.phi[image])
    # from all references, so that the axis stays while k grows
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
        # extra places around the centre, so that a narrow peak is not missed
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
    """(log losses (M, E, N), quartiles of the members' losses (3, E)); None where none are stored.

    M: the first models, as many as `KEPT` allows.
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
    """Losses of the references that trained on the sample, and of the target where `target` is
    given.
    """
    losses = losses_of(source)
    if losses is None:
        return pictures.empty("no training losses are stored with this pool")
    logs, quartiles = losses
    all_lines = np.exp(logs[:, :, image])
    # NaN in every epoch: not trained on; in some, the incomplete last batch was left out
    trained = ~np.isnan(all_lines).all(1)
    lines = all_lines[[row for row in rows if row < len(all_lines) and trained[row]]]
    target_line = None
    if target is not None and target < len(all_lines) and trained[target]:
        target_line = all_lines[target]
    last_losses = lines[:, -1][~np.isnan(lines[:, -1])]
    sample_text = "no reference trained on it"
    if len(last_losses):
        sample_text = f"{np.median(last_losses):.2g} here"
    return pictures.sample_traces(
        lines,
        quartiles,
        f"loss in the last epoch: {sample_text}, {quartiles[1, -1]:.2g} for the median member",
        own=target_line,
    )
