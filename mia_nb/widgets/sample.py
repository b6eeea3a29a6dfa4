"""One sample, two worlds: how models with it and models without it answer, and which of them the target is like."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import NamedTuple

import ipywidgets as W
import numpy as np
import pandas as pd

from mia_nb import metrics, plots
from mia_nb.attacks.likelihood import Fit, lira_fit, nig_fit
from mia_nb.attacks.margins import over_queries
from mia_nb.metrics.protocol import units
from mia_nb.plots import samples as pictures
from mia_nb.plots.style import LINES, row_of
from mia_nb.types import Signals
from mia_nb.widgets.explorer import ROW, Explorer, View, buttons, dropdown, message
from mia_nb.widgets.figure import plain
from mia_nb.widgets.scores import NOTHING
from mia_nb.widgets.stored import Source, named

TITLE = "One sample, two worlds"
VARIANCES = {"global": "global", "shrunk": "shrunk", "per sample": "per_sample"}
NONE = "n/m"  # not measurable
NU0 = 6.0  # lira's weight of the shrunk variance
DRAWS = 2000  # fits that the references leave possible
THUMBNAILS = 24
DOTS = 3000  # drawn anew with every sample
KEPT = 1e8  # losses of one pool held in memory


class Evidence(NamedTuple):
    """What k references a side say about every sample of one target; columns of the signals, population included."""

    phi: np.ndarray  # (N,) the target's margins
    gauss: Fit | None  # None: these references leave no variance
    student: Fit
    ratio: (
        np.ndarray
    )  # (N,) log likelihood ratios of the Gaussians, of Student's t where there are none
    flags: tuple[str, ...]


def sample(sources: Sequence[Source], *, sample: int | None = None) -> Explorer:
    """A sample's margin in the worlds with and without it, fitted from k references a side, and the target's own margin.

    Choose a sample by a click or by its number in the pool's images; a lasso tells who is in a subset.
    References come a pair at a time, the target's mate left out as in `attacks.score`; in designs without pairs k stands for 2k
    models. Fits: the Gaussians of `lira` with the chosen variance, Student's t of `nig`, both of the margin averaged over
    queries (of the last time step for "steps"). Intervals: 95 % of the fits that the references leave possible: v SS-scaled
    inverse chi-squared, m given v normal with variance v / n. sample: where to start; by default where the worlds differ most.
    """
    found = named(sources)
    if not found:
        return message(TITLE, NOTHING)
    seen = _cached(found)
    evidence, references = seen.evidence, seen.references
    last: dict[str, str | None] = {"pool": None}

    def draw(pool, target, attack, sample, k, variance, truth, subset) -> View:
        source, scores = found[pool], found[pool].scores(attack)
        column, value = source.column(sample), scores.value[row_of(scores, target)]
        lasso = tuple(np.flatnonzero(np.isin(source.numbers, subset)).tolist())
        world, one = evidence(pool, target, k, VARIANCES[variance]), int(source.audited[column])
        everyone = references(pool, target)[1]
        refs, trained = (
            everyone.select(models=slice(0, 2 * k)),
            bool(source.signals.member[target, one]),
        )
        told, who = (
            _told(source, target, one, sample, world, k, variance),
            seen.counted(pool, target, attack, lasso),
        )
        figures = {
            "scatter": _marked(
                seen.points(pool, target, attack, truth), source, target, attack, column
            ),
            "margins": _margins(
                refs, everyone, references(pool, target)[0], world, one, trained if truth else None
            ),
            "image": seen.image(pool, target, one),
            "traces": seen.traces(pool, target, one, truth),
            "subset": seen.crowd(pool, target, lasso, who, truth),
        }
        row = _row(source, target, column, world, value, truth, told)
        row |= _crowd(source, target, lasso, who, world, value, truth) if lasso else {}
        outcome = f"; in truth {'a member' if trained else 'no member'}" if truth else ""
        note = _note(source, refs, world, k, attack)
        return View(told["sentence"] + outcome, figures, pd.DataFrame([row]), note)

    def adjust(values) -> dict:
        pool = values["pool"]
        source = found[pool]
        offered, models = source.attacks(), len(source.signals.margin)
        target = values["target"] if values["target"] < models else 0
        most = -(-len(references(pool, target)[0]) // 2)
        k = most if last["pool"] != pool else min(values["k"], most)
        changes = {
            "target": {"options": list(range(models)), "value": target},
            "attack": {
                "options": offered,
                "value": values["attack"] if values["attack"] in offered else offered[0],
            },
            "k": {"min": 1, "max": most, "value": k},
        }
        unset = sample is None if last["pool"] is None else values["sample"] not in source.numbers
        if last["pool"] != pool and unset:
            changes["sample"] = {
                "value": _start(source, evidence(pool, target, most, "shrunk").student)
            }
        last["pool"] = pool
        return changes

    rows, controls = (
        [["scatter", "margins"], ["image", "traces"], ["subset"]],
        _controls(list(found), sample),
    )
    pointer = {
        "clicks": {"scatter": "sample"},
        "lassos": {"scatter": "subset"},
        "state": {"subset": ()},
    }
    return Explorer(TITLE, controls, draw, rows=rows, adjust=adjust, **pointer)


def _controls(pools: list[str], sample: int | None) -> dict:
    """What holds for any pool; the rest is filled in by `adjust`, whose complaints are shown in place."""
    return {
        "pool": dropdown("pool", pools, pools[0]),
        "target": dropdown("target", [0], 0),
        "attack": dropdown("attack"),
        "sample": W.IntText(description="sample", value=0 if sample is None else sample, **ROW),
        "k": W.IntSlider(description="k a side", min=1, max=1, value=1, **ROW),
        "variance": buttons("variance", list(VARIANCES), "shrunk"),
        "truth": W.Checkbox(
            description="show the truth", value=True, indent=False, layout=W.Layout(width="98%")
        ),
    }


def _cached(found: dict[str, Source]) -> SimpleNamespace:
    """What is computed once: references pair by pair and their rows, evidence, and the pictures that few controls change."""

    @lru_cache(4)
    def references(pool, target) -> tuple[np.ndarray, Signals, Signals]:
        signals = found[pool].signals
        own = signals.member[:, found[pool].audited]
        if own.all() or not own.any():
            raise ValueError(
                f"all models of {pool} or none were trained on these samples: ask about images that only some saw"
            )
        alone, others = signals.hold_out(target)
        if not len(others.margin):
            raise ValueError(
                f"target {target} of {pool} has no references but its mate: train two pairs or more"
            )
        order = np.argsort(units(others.member[:, ~others.population]), kind="stable")
        rows = np.flatnonzero((own != own[target]).any(1) & (own == own[target]).any(1))
        return rows[order], others.select(models=order), alone

    @lru_cache(64)
    def evidence(pool, target, k, variance) -> Evidence:
        _, others, alone = references(pool, target)
        others, how = (
            others.select(models=slice(0, 2 * k)),
            "last" if others.draws == "steps" else "margin",
        )
        with warnings.catch_warnings(record=True) as raised:
            warnings.simplefilter("always", UserWarning)
            phi, student = nig_fit(alone, others, combine=how)
            flags = [str(w.message) for w in raised]
            try:
                gauss = lira_fit(alone, others, variance=variance, combine=how)[1]
            except ValueError as error:  # one reference a side
                gauss, flags = None, [str(error)]
        return Evidence(phi, gauss, student, (gauss or student).log_ratio(phi), tuple(flags))

    @lru_cache(16)
    def points(pool, target, attack, truth) -> dict:
        x, y = (found[pool].scores(name) for name in ("loss", attack))
        row, keep = row_of(y, target), f"{pool} {target} {attack}"
        place = {"names": ("loss", attack), "numbers": found[pool].numbers, "points": DOTS}
        figure = pictures.score_points(
            x.value[row], y.value[row], y.member[row] if truth else None, **place
        )
        layout = figure["layout"]  # zoom and lasso stay while samples change
        axes = {axis: layout[axis] | {"uirevision": keep} for axis in ("xaxis", "yaxis")}
        return figure | {
            "layout": layout | axes | {"selectionrevision": keep, "modebar": {"uirevision": keep}}
        }

    image = lru_cache(8)(lambda pool, target, one: _image(found[pool], target, one))
    crowd = lru_cache(8)(lambda pool, *rest: _subset(found[pool], *rest))

    @lru_cache(8)
    def traces(pool, target, one, truth) -> dict:
        rows = references(pool, target)[0]
        return traces_of(losses_of(found[pool]), rows, one, target if truth else None)

    @lru_cache(8)
    def counted(pool, target, attack, lasso) -> str:
        """How many a lasso holds: of those that are drawn, where not all are."""
        x, y = (found[pool].scores(name) for name in ("loss", attack))
        row = row_of(y, target)
        shown, there = pictures.thinned(x.value[row], y.value[row], DOTS)
        if len(shown) < there and np.isin(lasso, shown).all():
            return f"{len(lasso):,} of the {len(shown):,} drawn (of {there:,})"
        return f"{len(lasso):,} samples"

    parts = (references, evidence, points, traces, counted)
    return SimpleNamespace(**{part.__name__: part for part in parts}, image=image, crowd=crowd)


def _start(source: Source, student: Fit) -> int:
    """The number of the sample whose worlds differ most."""
    apart = ((student.centre[0] - student.centre[1]) / student.scale[1])[source.audited]
    return int(source.numbers[np.nanargmax(apart) if np.isfinite(apart).any() else 0])


def possible(fit: Fit, phi: float, freedom: np.ndarray, *, seed: int = 0) -> np.ndarray:
    """(2, 2): 95 % intervals of m_in - m_out and of the log likelihood ratio at phi, for the Gaussians of one sample.

    Draws v = s^2 freedom / chi2(freedom) and m ~ N(centre, v / n) for both worlds, freedom (2,) infinite where v is known.
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


def _told(source: Source, target, one, sample, world: Evidence, k, variance) -> dict:
    """The sentence, and the numbers in it."""
    verdict = _verdict(source, target, one)
    says = {"right": "the target agrees", "wrong": "the target disagrees"}.get(verdict, verdict)
    start = f"Sample {sample} (labelled {class_of(source, one)}, {says}): "
    fit = (world.gauss or world.student).of(one)
    gap, ratio, n = float(fit.centre[0, 0] - fit.centre[1, 0]), float(world.ratio[one]), fit.n[:, 0]
    unknown = {"gap": NONE, "ratio": NONE}
    if n.min() == 0:
        missing = "IN" if n[0] == 0 else "OUT"
        return {
            "sentence": f"{start}none of these references is {missing}, so there is no ratio: take more"
        } | unknown
    words = (
        f"k = {k} reference{'s' * (k > 1)} a side"
        if n[0] == n[1] == k
        else f"{n[0]} IN and {n[1]} OUT references"
    )
    start += f"IN and OUT models differ by {gap:.2g} nats"
    unknown["gap"] = f"{gap:.3g} [{NONE}]"
    if world.gauss is None:
        return {
            "sentence": f"{start}; from {words} only nig gives a ratio, {ratio:.2g}, and no interval"
        } | unknown
    freedom = {"global": np.full(2, np.inf), "shrunk": NU0 + n - 1.0, "per sample": n - 1.0}[
        variance
    ]
    if freedom.min() <= 0:
        sentence = f"{start}; from {words} the log likelihood ratio is {ratio:.2g}, no interval: one reference on a side"
        return {"sentence": sentence} | unknown | {"ratio": f"{ratio:.3g} [{NONE}]"}
    (low, high), (least, most) = possible(fit, float(world.phi[one]), freedom)
    verdict = (
        "undecided"
        if not (least > 0 or most < 0)
        else "as if it were a member"
        if ratio > 0
        else "as if it were none"
    )
    sentence = (
        f"{start} [{low:.2g}, {high:.2g}]; from {words} the log likelihood ratio is {ratio:.2g} "
    )
    sentence += f"[{least:.2g}, {most:.2g}]: {verdict}"
    return {
        "sentence": sentence,
        "gap": f"{gap:.3g} [{low:.3g}, {high:.3g}]",
        "ratio": f"{ratio:.3g} [{least:.3g}, {most:.3g}]",
    }


def _verdict(source: Source, target, one) -> str:
    right = over_queries(
        source.signals.correct[target : target + 1, :, one : one + 1], source.signals.draws
    )[0, 0]
    return "right" if right == 1 else "wrong" if right == 0 else f"right in {right:.0%} of queries"


def class_of(source: Source, one: int) -> str:
    """The name of a column's class; its number where there are fewer names."""
    label = int(source.signals.labels[one])
    return source.classes[label] if label < len(source.classes) else str(label)


def shown(number: float, form: str = ".3g") -> str:
    return NONE if np.isnan(number) else format(number, form)


def _row(source: Source, target, column, world: Evidence, value, truth, told) -> dict:
    signals, one = source.signals, source.audited[column]
    fit, phi = world.student.of(one), float(world.phi[one])
    row = {
        "who": f"sample {source.numbers[column]}", "label": class_of(source, one), "target's margin": f"{phi:.3f}",
        "confidence": f"{np.exp(-np.logaddexp(0, -phi)):.2%}", "n IN": str(fit.n[0, 0]), "n OUT": str(fit.n[1, 0]),
        "m IN - m OUT": told["gap"], "log LR": told["ratio"],
        "log LR (nig)": shown(float(fit.log_ratio(phi)[0])), "score": shown(value[column], ".4g"),
    }  # fmt: skip
    if truth:
        ratio, member = world.ratio[source.audited], signals.member[target, source.audited]
        others = ratio[~member & np.isfinite(ratio)]
        row["non-members as high"] = NONE
        if len(others) and not np.isnan(world.ratio[one]):
            high = int((others >= world.ratio[one]).sum())
            low, top = metrics.clopper_pearson(high, len(others))
            row["non-members as high"] = f"{high:,} of {len(others):,} [{low:.2%}, {top:.2%}]"
        row["members"] = "yes" if signals.member[target, one] else "no"
    return row


def _crowd(source: Source, target, lasso, who: str, world: Evidence, value, truth) -> dict:
    """What the table says of a lassoed subset."""
    columns = np.array(lasso)
    own = source.audited[columns]
    inside = int(source.signals.member[target, own].sum())
    means = {"margin": world.phi[own], "log LR": world.ratio[own], "score": value[columns]}
    row = {"lasso": who}
    row |= (
        {"lasso: members": f"{inside:,} and {len(columns) - inside:,} non-members"} if truth else {}
    )
    return row | {
        f"lasso: mean {name}": shown(_mean(numbers), ".4g") for name, numbers in means.items()
    }


def _mean(numbers: np.ndarray) -> float:
    known = numbers[~np.isnan(numbers)]
    return float(known.mean()) if len(known) else np.nan


def _note(source: Source, refs: Signals, world: Evidence, k: int, attack: str) -> str:
    asked = refs.margin.shape[1]
    words = [
        "intervals: 95 % of the fits that these references leave possible",
        "the target's mate is no reference",
    ]
    if not (refs.member.sum(0) == k)[source.audited].all():
        words.append(
            f"no complementary pairs: k = {k} stands for {len(refs.margin)} models, shared out by chance"
        )
    if asked > 1:
        words.append(
            "margins after the last time step"
            if refs.draws == "steps"
            else f"margins are means of {asked} queries"
        )
    words.append(
        "losses: references that trained on it, dashed and shaded all members; non-members have no training loss"
    )
    words.append(
        f"score: {attack} with all references; what one ratio proves depends on how often it errs: see Scores and ROC"
    )
    return "; ".join([*words, *dict.fromkeys(world.flags)])


def _marked(points: dict, source: Source, target, attack, column) -> dict:
    """The scatter with a ring around the sample."""
    x, y = (
        source.scores(name).value[row_of(source.scores(name), target), column]
        for name in ("loss", attack)
    )
    ring = {"color": LINES[2], "symbol": "circle-open", "size": 17, "line": {"width": 3}}
    # scattergl as the points are: browsers lay those over all that is not
    mark = {
        "type": "scattergl",
        "x": [float(x)],
        "y": [float(y)],
        "mode": "markers",
        "marker": ring,
        "hoverinfo": "skip",
    }
    mark = mark | {
        "name": f"sample {source.numbers[column]}",
        "unselected": {"marker": {"opacity": 1}},
    }
    return (
        points | {"data": [*points["data"], mark]} if np.isfinite(x) and np.isfinite(y) else points
    )


def _margins(
    refs: Signals, everyone: Signals, rows, world: Evidence, one: int, trained: bool | None
) -> dict:
    how = (
        (lambda cube: cube[:, -1, one])
        if refs.draws == "steps"
        else (lambda cube: cube[:, :, one].mean(1))
    )
    margin, phi = how(refs.margin), float(world.phi[one])
    reach = np.append(how(everyone.margin), phi)  # of all references: the axis stays while k grows
    low, high = float(reach.min()), float(reach.max())
    span = (low - 0.25 * (high - low) - 0.1, high + 0.25 * (high - low) + 0.1)
    curves = []
    for name, dash, fit in (
        ("Gaussian", "dash", world.gauss),
        ("Student t (nig)", "dot", world.student),
    ):
        if fit is not None and np.isfinite(fit.of(one).centre).any():
            mine = fit.of(one)
            near = np.nan_to_num(
                mine.centre + mine.scale * np.linspace(-4, 4, 61), nan=low
            ).ravel()  # a narrow peak is drawn too
            x = np.sort(
                np.concatenate([np.linspace(*span, 121), near[(near > span[0]) & (near < span[1])]])
            )
            curves.append(pictures.Curve(name, dash, x, *np.exp(mine.log_density(x))))
    n = int(refs.member[:, one].sum())
    sentence = f"{n} IN and {len(margin) - n} OUT references; the target at {phi:.2f}"
    place = {
        "numbers": rows[: len(margin)],
        "target": phi,
        "trained": trained,
        "curves": curves,
        "span": span,
    }
    return pictures.two_worlds(margin, refs.member[:, one], sentence, **place)


def _image(source: Source, target, one) -> dict:
    if source.images is None:
        return pictures.empty("no images are stored with these signals")
    sure = np.exp(-np.logaddexp(0, -source.signals.margin[target, :, one])).mean()
    words = (
        f"labelled {class_of(source, one)}; target {_verdict(source, target, one)}, p = {sure:.3g}"
    )
    return pictures.picture(source.images[one], words)


@lru_cache(2)  # for all explorers together: each entry may take 400 MB
def losses_of(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """(log losses (M, E, N) of as many models as memory should hold, quartiles of all members' losses (3, E)), or None."""
    one = source.trace(0)
    if one is None:
        return None
    kept = np.stack(
        [
            source.trace(m)
            for m in range(min(len(source.signals.margin), max(1, int(KEPT / one.size))))
        ]
    )
    each = [
        np.nanquantile(log[:, ~np.isnan(log).all(0)], [0.25, 0.5, 0.75], axis=1) for log in kept
    ]
    return kept, np.exp(np.mean(each, axis=0))


def traces_of(losses, rows, one, target: int | None) -> dict:
    """Losses of the references that trained on the sample; the target's own where its membership may be seen."""
    if losses is None:
        return pictures.empty("no training losses are stored with this pool")
    kept, everyone = losses
    log = kept[rows[rows < len(kept)], :, one]
    lines = np.exp(
        log[~np.isnan(log).all(1)]
    )  # an epoch that leaves out an incomplete batch leaves a gap
    own = np.exp(kept[target, :, one]) if target is not None and target < len(kept) else None
    own = None if own is None or np.isnan(own).all() else own
    ended = np.exp(log[:, -1][~np.isnan(log[:, -1])])
    here = f"{np.median(ended):.2g} here" if len(ended) else "no reference trained on it"
    sentence = f"loss in the last epoch: {here}, {everyone[1, -1]:.2g} for the median member"
    return pictures.sample_traces(lines, everyone, sentence, own=own)


def _subset(source: Source, target, lasso, who: str, truth) -> dict:
    if not lasso:
        return pictures.empty(
            "Draw a lasso around points of the scatter to see who they are", height=90
        )
    own = source.audited[list(lasso)]
    inside = int(source.signals.member[target, own].sum())
    some = np.linspace(0, len(own) - 1, min(len(own), THUMBNAILS)).astype(int)
    who += f", {inside:,} members and {len(own) - inside:,} non-members" if truth else ""
    if source.images is None:
        return pictures.empty(f"{who}; no images are stored with these signals")
    numbers, own = source.numbers[list(lasso)][some], own[some]
    labels = [class_of(source, one) for one in own]
    x, who = source.images[own], who + (f"; {len(own)} of them" if len(own) < len(lasso) else "")
    if not truth:
        return pictures.sheet(
            x, [f"{c}<br>{label}" for c, label in zip(numbers, labels, strict=True)], numbers, who
        )
    captions = [f"{c}: {label}" for c, label in zip(numbers, labels, strict=True)]
    figure = plots.images(x, captions, source.signals.member[target, own], columns=8)
    return plain(figure.update_layout(title={"text": f"{who}: ● members, ◇ non-members"}))
