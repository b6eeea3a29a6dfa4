"""One sample, two worlds: the outputs of models with it and of models without it, and which of
them the target is like.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.attacks.likelihood import Fit, lira_fit, nig_fit
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.pairs import units
from mia_nb.plots import samples as pictures
from mia_nb.plots.style import LINES, row_of
from mia_nb.types import Signals
from mia_nb.widgets.compared import ends
from mia_nb.widgets.explorer import (
    END,
    ROW,
    Explorer,
    View,
    buttons,
    count,
    dropdown,
    message,
    remarks,
    tick,
)
from mia_nb.widgets.figure import plain, with_layout
from mia_nb.widgets.scores import NOTHING
from mia_nb.widgets.stored import Source, keep, named

TITLE = "One sample, two worlds"
VARIANCES = {"global": "global", "shrunk": "shrunk", "per sample": "per_sample"}
NONE = "n/m"  # not measurable
NU0 = 6.0  # lira's weight of the shrunk variance
DRAWS = 2000  # draws of fits given the references
THUMBNAILS = 24
DOTS = 3000  # drawn anew with every sample
KEPT = 1e8  # losses of one pool held in memory


class Evidence(NamedTuple):
    """What k references a side say about every sample of one target; columns of the signals,
    population included.
    """

    phi: np.ndarray  # (N,) the target's margins
    gauss: Fit | None  # None: these references leave no variance
    student: Fit
    # (N,) log likelihood ratios of the Gaussians, of Student's t where there are none
    ratio: np.ndarray
    flags: tuple[str, ...]


def sample(sources: Sequence[Source], *, sample: int | None = None) -> Explorer:
    """A sample's margin in the worlds with and without it, fitted from k references a side, and the
    target's own margin.

    Choose a sample by a click or by its number in the pool's images; a lasso tells who is in a
    subset. References come a pair at a time, the target's complementary model left out as in
    `attacks.score`; in designs without pairs k stands for 2k models. Fits: the Gaussians of `lira`
    with the chosen variance, Student's t of `nig` (Student-t LiRA), both of the margin averaged
    over queries (of the last time step for "steps"). Intervals: 95 % given these references: v
    SS-scaled inverse chi-squared, m given v normal with variance v / n.

    sources: what to choose the pool from
    sample: number of the sample to start with; by default that whose worlds differ most
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    seen = Seen(found)

    def most(pool, target) -> int:
        return -(-len(seen.references(pool, target)[0]) // 2)

    def start(pool, target, sample) -> int:
        """Whose worlds differ most, unless the sample chosen before is here too."""
        source = found[pool]
        if sample in source.numbers:
            return sample
        fit = seen.evidence(pool, target, most(pool, target), "shrunk").student
        apart = ((fit.centre[0] - fit.centre[1]) / fit.scale[1])[source.audited]
        return int(source.numbers[np.nanargmax(apart) if np.isfinite(apart).any() else 0])

    # what holds for any pool; the rest is filled in by what they follow, whose complaints are
    # shown in place
    controls = {
        "pool": dropdown("pool", list(found), next(iter(found))),
        "target": dropdown("target", [0], 0),
        "attack": dropdown("attack"),
        "sample": W.IntText(description="sample", value=-1, **ROW),
        "k": count("k a side"),
        "variance": buttons("variance", list(VARIANCES), "shrunk"),
        "truth": tick("show the truth", True),
    }
    follow = {
        "target": {"options": lambda pool: found[pool].targets[1:]},
        "attack": {"options": lambda pool: found[pool].attacks()},
        "k": {"max": most, "value": lambda pool: END},
        "sample": {"value": start},
    }
    explorer = Explorer(
        TITLE,
        controls,
        seen.view,
        rows=[["scatter", "margins"], ["image", "traces"], ["subset"]],
        follow=follow,
        state={"subset": ()},
        clicks={"scatter": "sample"},
        lassos={"scatter": "subset"},
    )
    if sample is not None:
        explorer.controls["sample"].value = sample
    return explorer


class Seen:
    """What one explorer has computed so far: references and evidence, and the pictures that few
    controls change.
    """

    def __init__(self, found: dict[str, Source]):
        self.found = found
        keep(self, references=4, evidence=64, points=16, counted=8, image=8, traces=8, crowd=8)

    def references(self, pool, target) -> tuple[np.ndarray, Signals, Signals]:
        """(models of the references pair by pair (R,), their signals, those of the target)."""
        source = self.found[pool]
        own = source.signals.member[:, source.audited]
        if own.all() or not own.any():
            raise ValueError(
                f"all models of {pool} or none were trained on these samples: query images that"
                " only some saw"
            )
        others = source.signals.reference_rows(target)
        if not len(others):
            raise ValueError(
                f"target {target} of {pool} has no references but its complementary model: train"
                " two pairs or more"
            )
        others = others[np.argsort(units(own[others]), kind="stable")]
        alone = source.signals.select(models=[target]).hide()
        return others, source.signals.select(models=others), alone

    def evidence(self, pool, target, k, variance) -> Evidence:
        """What the first k references a side say, and why where they say less."""
        _, everyone, alone = self.references(pool, target)
        others = everyone.select(models=slice(0, 2 * k))
        combine = "last" if others.draws == "steps" else "margin"
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)
            phi, student = nig_fit(alone, others, combine=combine)
            flags = [str(w.message) for w in raised]
            try:
                gauss = lira_fit(alone, others, variance=variance, combine=combine)[1]
            except ValueError as error:  # one reference a side
                gauss, flags = None, [str(error)]
        return Evidence(phi, gauss, student, (gauss or student).log_ratio(phi), tuple(flags))

    def plane(self, pool, target, attack) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(scores of the loss attack and of this one, membership), (N,) each, of one target."""
        x, y = (self.found[pool].scores(name) for name in ("loss", attack))
        row = row_of(y, target)
        return x.value[row], y.value[row], y.member[row]

    def points(self, pool, target, attack, truth) -> dict:
        """The scatter of a target's scores, without the sample's mark."""
        x, y, member = self.plane(pool, target, attack)
        numbers, same = self.found[pool].numbers, f"{pool} {target} {attack}"
        figure = pictures.score_points(
            x, y, member if truth else None, names=("loss", attack), numbers=numbers, points=DOTS
        )
        layout = figure["layout"]  # zoom and lasso stay while samples change
        axes = {axis: layout[axis] | {"uirevision": same} for axis in ("xaxis", "yaxis")}
        bar = {"uirevision": same}
        return with_layout(figure, **axes, selectionrevision=same, modebar=bar)

    def counted(self, pool, target, attack, lasso) -> str:
        """How many a lasso holds: of those that are drawn, where not all are."""
        drawn, there = pictures.thinned(*self.plane(pool, target, attack)[:2], DOTS)
        if len(drawn) < there and np.isin(lasso, drawn).all():
            return f"{len(lasso):,} of the {len(drawn):,} drawn (of {there:,})"
        return f"{len(lasso):,} samples"

    def image(self, pool, target, one) -> dict:
        """The sample's image, with its label and how the target takes it."""
        source = self.found[pool]
        if source.images is None:
            return pictures.empty("no images are stored with these signals")
        sure = np.exp(-np.logaddexp(0, -source.signals.margin[target, :, one])).mean()
        words = f"labelled {source.class_of(one)}; target {verdict(source, target, one)}"
        return pictures.picture(source.images[one], f"{words}, p = {sure:.3g}")

    def traces(self, pool, target, one, truth) -> dict:
        rows = self.references(pool, target)[0]
        return traces_of(losses_of(self.found[pool]), rows, one, target if truth else None)

    def crowd(self, pool, target, lasso, who, truth) -> dict:
        """The picture of those in a lasso."""
        source = self.found[pool]
        if not lasso:
            words = "Draw a lasso around points of the scatter to see who they are"
            return pictures.empty(words, height=90)
        own, numbers = source.audited[list(lasso)], source.numbers[list(lasso)]
        inside = int(source.signals.member[target, own].sum())
        who += f", {inside:,} members and {len(own) - inside:,} non-members" if truth else ""
        if source.images is None:
            return pictures.empty(f"{who}; no images are stored with these signals")
        some = np.linspace(0, len(own) - 1, min(len(own), THUMBNAILS)).astype(int)
        own, numbers = own[some], numbers[some]
        who += f"; {len(own)} of them" if len(own) < len(lasso) else ""
        between = ": " if truth else "<br>"
        captions = [f"{n}{between}{source.class_of(x)}" for n, x in zip(numbers, own, strict=True)]
        if not truth:
            return pictures.sheet(source.images[own], captions, numbers, who)
        member = source.signals.member[target, own]
        figure = plots.images(source.images[own], captions, member, columns=8)
        return plain(figure.update_layout(title={"text": f"{who}: ● members, ◇ non-members"}))

    def view(self, pool, target, attack, sample, k, variance, truth, subset) -> View:
        """What is shown for one setting of the controls."""
        source, (x, y, member) = self.found[pool], self.plane(pool, target, attack)
        column, (rows, everyone, _) = source.column(sample), self.references(pool, target)
        world, one = (
            self.evidence(pool, target, k, VARIANCES[variance]),
            int(source.audited[column]),
        )
        refs, trained = everyone.select(models=slice(0, 2 * k)), bool(member[column])
        lasso = tuple(np.flatnonzero(np.isin(source.numbers, subset)).tolist())
        who = self.counted(pool, target, attack, lasso)
        place = (float(x[column]), float(y[column]))
        figures = {
            "scatter": ringed(self.points(pool, target, attack, truth), place, sample),
            "margins": margins(refs, everyone, rows, world, one, trained if truth else None),
            "image": self.image(pool, target, one),
            "traces": self.traces(pool, target, one, truth),
            "subset": self.crowd(pool, target, lasso, who, truth),
        }
        sentence, gap, ratio = told(source, target, one, sample, world, k, variance)
        row = numbers(source, target, column, world, y, truth) | {
            "m IN - m OUT": gap,
            "log LR": ratio,
        }
        row |= subset_numbers(source, target, lasso, who, world, y, truth) if lasso else {}
        if truth:
            sentence += f"; is a {'member' if trained else 'non-member'}"
        return View(sentence, figures, pd.DataFrame([row]), note(source, refs, world, k, attack))


def possible(fit: Fit, phi: float, freedom: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """(2, 2): 95 % intervals of m_in - m_out and of the log likelihood ratio at phi, for the
    Gaussians of one sample.

    Draws v = s^2 freedom / chi2(freedom) and m ~ N(centre, v / n) for both worlds, freedom (2,)
    infinite where v is known.
    """
    rng = np.random.default_rng(seed)
    known = np.isinf(freedom)[:, None]
    counted = np.where(np.isinf(freedom), 1.0, np.maximum(freedom, 1e-9))[:, None]
    scale = fit.scale * np.where(
        known, 1.0, np.sqrt(counted / np.maximum(rng.chisquare(counted, (2, DRAWS)), 1e-300))
    )
    centre = fit.centre + scale / np.sqrt(fit.n) * rng.standard_normal((2, DRAWS))
    ratio = Fit(centre, scale, np.full_like(scale, np.inf), fit.n).log_ratio(phi)
    return np.quantile([centre[0] - centre[1], ratio], [0.025, 0.975], axis=1).T


def told(source: Source, target, one, sample, world: Evidence, k, variance) -> tuple[str, str, str]:
    """(the sentence, how far the worlds lie apart, the log likelihood ratio), with intervals where
    they can be told.
    """
    right = verdict(source, target, one)
    says = {"right": "the target agrees", "wrong": "the target disagrees"}.get(right, right)
    start = f"Sample {sample} (labelled {source.class_of(one)}, {says}): "
    fit = (world.gauss or world.student).of(one)
    gap, ratio, n = float(fit.centre[0, 0] - fit.centre[1, 0]), float(world.ratio[one]), fit.n[:, 0]
    if n.min() == 0:
        side = "IN" if n[0] == 0 else "OUT"
        words = f"none of these references is {side}, so there is no ratio: take more"
        return start + words, NONE, NONE
    start += f"IN and OUT models differ by {gap:.2g} nats"
    words = f"{n[0]} IN and {n[1]} OUT references"
    if n[0] == n[1] == k:
        words = f"k = {k} reference{'s' * (k > 1)} a side"
    if world.gauss is None:
        words += f" only Student-t LiRA gives a ratio, {ratio:.2g}, and no interval"
        return f"{start}; from {words}", f"{gap:.3g} [{NONE}]", NONE
    words += f" the log likelihood ratio is {ratio:.2g}"
    freedom = {"global": np.full(2, np.inf), "shrunk": NU0 + n - 1.0, "per sample": n - 1.0}[
        variance
    ]
    if freedom.min() <= 0:
        sentence = f"{start}; from {words}, no interval: one reference on a side"
        return sentence, f"{gap:.3g} [{NONE}]", f"{ratio:.3g} [{NONE}]"
    (low, high), (least, most) = possible(fit, float(world.phi[one]), freedom)
    like = "looks like a member" if ratio > 0 else "looks like a non-member"
    like = like if least > 0 or most < 0 else "undecided"
    return (
        f"{start} [{low:.2g}, {high:.2g}]; from {words} [{least:.2g}, {most:.2g}]: {like}",
        ends(gap, low, high, ".3g"),
        ends(ratio, least, most, ".3g"),
    )


def verdict(source: Source, target: int, one: int) -> str:
    """Whether the target is right on a sample."""
    correct = source.signals.correct[target : target + 1, :, one : one + 1]
    right = over_queries(correct, source.signals.draws)[0, 0]
    return {1: "right", 0: "wrong"}.get(right, f"right in {right:.0%} of queries")


def shown(number: float, form: str = ".3g") -> str:
    return NONE if np.isnan(number) else format(number, form)


def numbers(source: Source, target, column, world: Evidence, value, truth) -> dict:
    """The table's row about one sample."""
    one = source.audited[column]
    fit, phi = world.student.of(one), float(world.phi[one])
    row = {
        "who": f"sample {source.numbers[column]}",
        "label": source.class_of(one),
        "target's margin": f"{phi:.3f}",
        "confidence": f"{np.exp(-np.logaddexp(0, -phi)):.2%}",
        "n IN": str(fit.n[0, 0]),
        "n OUT": str(fit.n[1, 0]),
        "m IN - m OUT": "",
        "log LR": "",
        "log LR (Student-t LiRA)": shown(float(fit.log_ratio(phi)[0])),
        "score": shown(value[column], ".4g"),
    }
    if not truth:
        return row
    ratio, member = world.ratio[source.audited], source.signals.member[target, source.audited]
    others = ratio[~member & np.isfinite(ratio)]
    row["non-members as high"] = NONE
    if len(others) and not np.isnan(world.ratio[one]):
        high = int((others >= world.ratio[one]).sum())
        low, top = metrics.clopper_pearson(high, len(others))
        row["non-members as high"] = f"{high:,} of {len(others):,} [{low:.2%}, {top:.2%}]"
    return row | {"members": "yes" if member[column] else "no"}


def subset_numbers(source: Source, target, lasso, who: str, world: Evidence, value, truth) -> dict:
    """What the table says of a lassoed subset."""
    own = source.audited[list(lasso)]
    inside = int(source.signals.member[target, own].sum())
    row = {"lasso": who}
    if truth:
        row["lasso: members"] = f"{inside:,} and {len(own) - inside:,} non-members"
    columns = {"margin": world.phi[own], "log LR": world.ratio[own], "score": value[list(lasso)]}
    for name, each in columns.items():
        known = each[~np.isnan(each)]
        row[f"lasso: mean {name}"] = shown(known.mean() if len(known) else np.nan, ".4g")
    return row


def note(source: Source, refs: Signals, world: Evidence, k: int, attack: str) -> str:
    """What the numbers rest on."""
    queries, steps = refs.margin.shape[1], refs.draws == "steps"
    unpaired = not (refs.member.sum(0) == k)[source.audited].all()
    texts = {
        "95 % intervals given these references": True,
        "the target's complementary model is no reference": True,
        f"no complementary pairs: k = {k} stands for {len(refs.margin)} models, shared out by"
        " chance": unpaired,
        "margins after the last time step": queries > 1 and steps,
        f"margins are means of {queries} queries": queries > 1 and not steps,
        "losses: references that trained on it, dashed and shaded all members; non-members have no"
        " training loss": True,
        f"score: {attack} with all references; what one ratio proves depends on how often it errs:"
        " see Scores and ROC": True,
    }
    return remarks(texts, world.flags)


def ringed(points: dict, place: tuple[float, float], sample: int) -> dict:
    """The scatter with a ring around the sample; without one where it has no place."""
    if not np.isfinite(place).all():
        return points
    # scattergl as the points are: browsers lay those over all that is not
    mark = {
        "type": "scattergl",
        "x": [place[0]],
        "y": [place[1]],
        "mode": "markers",
        "marker": {
            "color": LINES[2],
            "symbol": "circle-open",
            "size": 17,
            "line": {"width": 3},
        },
        "hoverinfo": "skip",
        "name": f"sample {sample}",
        "unselected": {"marker": {"opacity": 1}},
    }
    return points | {"data": [*points["data"], mark]}


def margins(
    refs: Signals, everyone: Signals, rows, world: Evidence, one: int, trained: bool | None
) -> dict:
    """The sample's margins by its references, the fits, and the target's own margin."""

    def of(signals: Signals) -> np.ndarray:
        queries = signals.margin[:, :, one]
        return queries[:, -1] if signals.draws == "steps" else queries.mean(1)

    margin, phi, member = of(refs), float(world.phi[one]), refs.member[:, one]
    reach = np.append(of(everyone), phi)  # of all references: the axis stays while k grows
    low, high = float(reach.min()), float(reach.max())
    span = (low - 0.25 * (high - low) - 0.1, high + 0.25 * (high - low) + 0.1)
    curves = []
    for name, dash, fit in (
        ("Gaussian", "dash", world.gauss),
        ("Student-t LiRA", "dot", world.student),
    ):
        if fit is not None and np.isfinite(fit.of(one).centre).any():
            mine = fit.of(one)
            # a narrow peak is drawn too
            near = np.nan_to_num(mine.centre + mine.scale * np.linspace(-4, 4, 61), nan=low).ravel()
            near = near[(near > span[0]) & (near < span[1])]
            x = np.sort(np.concatenate([np.linspace(*span, 121), near]))
            curves.append(pictures.Curve(name, dash, x, *np.exp(mine.log_density(x))))
    return pictures.two_worlds(
        margin,
        member,
        f"{member.sum()} IN and {(~member).sum()} OUT references; the target at {phi:.2f}",
        numbers=rows[: len(margin)],
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


def traces_of(losses, rows, one, target: int | None) -> dict:
    """Losses of the references that trained on the sample; the target's own where its membership
    may be seen.
    """
    if losses is None:
        return pictures.empty("no training losses are stored with this pool")
    logs, everyone = losses
    log = logs[rows[rows < len(logs)], :, one]
    # an epoch that leaves out an incomplete batch leaves a gap
    lines = np.exp(log[~np.isnan(log).all(1)])
    own = np.exp(logs[target, :, one]) if target is not None and target < len(logs) else None
    own = None if own is None or np.isnan(own).all() else own
    ended = np.exp(log[:, -1][~np.isnan(log[:, -1])])
    here = f"{np.median(ended):.2g} here" if len(ended) else "no reference trained on it"
    sentence = f"loss in the last epoch: {here}, {everyone[1, -1]:.2g} for the median member"
    return pictures.sample_traces(lines, everyone, sentence, own=own)
