"""Verdicts on the claims of the spiking-network study, from paired differences between settings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.metrics.published import ALIGNED, Cell, checked, fewest_non_members, measurable
from mia_nb.metrics.uncertainty import FPR, bootstrap, names, per_target_metrics, percentile, t_interval, two_way
from mia_nb.types import Scores

ATTACKS = ("rmia", "attack_r", "attack_p")  # the study's three, strongest first as it claims
ORIGINALS = {"rmia": "rmia_count", "attack_p": "attack_p(form='population')"}  # modified score: what it replaced
SAME = 0.01  # differences up to this count as none, of AUC and of accuracy
TREATMENTS = {False: "without dropout", True: "with dropout"}
FROM = {"own": "", "ann": ", ANN references", ALIGNED: ", aligned ANN references"}


class Contrast(NamedTuple):
    """A signed sum over sides that a claim wants positive (`margin` 0) or within +-margin.

    A side is one cell, or the strongest of several attacks taken inside each draw. `part` groups contrasts in the evidence;
    parts that are not `needed` are reported and decide nothing.
    """

    part: str
    compared: str
    terms: tuple[tuple[int, tuple[Cell, ...]], ...]
    metric: str = "auc"
    needed: bool = True
    margin: float = 0.0
    chance: bool = False  # subtract what a coin gets


def _who(cell: Cell) -> str:
    """The models of a cell: "ANN", "SNN hybrid T=2"."""
    return "ANN" if cell.family == "ann" else f"SNN {cell.training} T={cell.timesteps}"


def _where(cell: Cell) -> str:
    """The whole setting of a cell in words."""
    dropout = " with dropout" if cell.input_dropout else ""
    return _who(cell) + dropout + FROM[cell.references]


def _own(cells, **wanted) -> list[Cell]:
    """Cells with these fields, and references of their own family unless one of them, by number of time steps."""
    wanted = {"references": "own"} | wanted
    found = [cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items())]
    return sorted(found, key=lambda cell: cell.timesteps)


def _strongest(cells, *settings: Cell) -> list[tuple[Cell, ...]]:
    """For each setting the attacks that all of them have, so that families are compared by their worst case; maybe none."""
    common = [cell.attack for cell in cells if all(s._replace(attack=cell.attack) in cells for s in settings)]
    return [tuple(s._replace(attack=attack) for attack in dict.fromkeys(common)) for s in settings]


def _worst_case(side: tuple[Cell, ...]) -> str:
    return f"strongest of {len(side)} attacks" if len(side) > 1 else side[0].attack


def _minus(part: str, compared: str, a, b, **options) -> Contrast:
    sides = [(side,) if isinstance(side, Cell) else side for side in (a, b)]
    return Contrast(part, compared, ((1, sides[0]), (-1, sides[1])), **options)


def _steps(group: list[Cell]) -> list[tuple[Cell, Cell]]:
    """Adjacent numbers of time steps, and the ends when there is something between."""
    return [*pairwise(group), *([(group[0], group[-1])] if len(group) > 2 else [])]


def _settings(cells, **wanted) -> list[Cell]:
    """Distinct settings, attack left blank."""
    return list(dict.fromkeys(cell._replace(attack="") for cell in _own(cells, **wanted)))


def _s1(cells) -> Iterator[Contrast]:
    for cell in cells:
        for strong, weak in pairwise(ATTACKS):
            other = cell._replace(attack=weak)
            if cell.attack == strong and other in cells:
                yield _minus(f"{strong} over {weak}", _where(cell), cell, other)


def _s2(cells) -> Iterator[Contrast]:
    for attack in ATTACKS:
        for group in _over_steps(_own(cells, family="snn", attack=attack)):
            for few, more in _steps(group):
                yield _minus(attack, f"{_where(more)} - T={few.timesteps}", more, few)


def _over_steps(cells) -> list[list[Cell]]:
    """Cells that differ in nothing but their number of time steps."""
    groups: dict[Cell, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell._replace(timesteps=0), []).append(cell)
    return list(groups.values())


def _s3(cells) -> Iterator[Contrast]:
    for dropout, part in TREATMENTS.items():
        ann = Cell("ann", input_dropout=dropout)
        for snn in _settings(cells, family="snn", input_dropout=dropout):
            a, b = _strongest(cells, ann, snn)
            if a:
                yield _minus(part, f"{_who(ann)} - {_who(snn)}, {_worst_case(a)}", a, b)
            for attack in ATTACKS:
                if ann._replace(attack=attack) in cells and snn._replace(attack=attack) in cells:
                    pair = (ann._replace(attack=attack), snn._replace(attack=attack))
                    yield _minus(f"{attack} {part}", f"{_who(ann)} - {_who(snn)}", *pair, needed=False)


def _gains(cells, chosen) -> Iterator[Contrast]:
    """Input dropout minus plain queries, where both were run; the study's strongest attack decides."""
    for cell in chosen:
        plain = cell._replace(input_dropout=False)
        if cell.input_dropout and plain in cells and cell.attack in ATTACKS:
            yield _minus(cell.attack, _where(plain), cell, plain, needed=cell.attack == ATTACKS[0])


def _s4(cells) -> Iterator[Contrast]:
    gains = list(_gains(cells, _own(cells, family="snn")))
    yield from gains
    for gain in gains:
        (_, (snn,)), _ = gain.terms
        ann = Cell("ann", input_dropout=True, attack=snn.attack)
        if snn.attack == ATTACKS[0] and ann in cells and (plain := ann._replace(input_dropout=False)) in cells:
            terms = (*gain.terms, (-1, (ann,)), (1, (plain,)))
            yield Contrast("gain beyond the ANN's own", gain.compared, terms, needed=False)
    for gain in _gains(cells, _own(cells, family="ann")):
        yield gain._replace(part=f"{gain.part} on the ANN itself", needed=False)


def _s5(cells) -> Iterator[Contrast]:
    yield from _gains(cells, _own(cells, family="snn", references="ann"))
    for gain in _gains(cells, _own(cells, family="snn", references=ALIGNED)):
        yield gain._replace(part=f"{gain.part}, aligned", needed=False)


def _s6(cells) -> Iterator[Contrast]:
    for cell in cells:
        if cell.family == "snn" and cell.references != "own" and cell.attack in ATTACKS[:2]:
            needed, own = cell.attack == ATTACKS[0], cell._replace(references="own")
            prefix, how = "" if needed else f"{cell.attack} ", ", aligned" if cell.references == ALIGNED else ""
            if own in cells:
                yield _minus(f"{prefix}weaker than own{how}", f"own - other, {_where(cell)}", own, cell, needed=needed)
            coin = f"{prefix}better than a coin{how}"
            yield Contrast(coin, _where(cell), ((1, (cell,)),), needed=needed, chance=True)


def _s7(cells) -> Iterator[Contrast]:
    for direct in _settings(cells, training="direct"):
        a, b = _strongest(cells, direct, direct._replace(training="hybrid"))
        if a:
            what = f"{_where(direct)} - hybrid, {_worst_case(a)}"
            yield _minus("AUC", what, a, b, margin=SAME)
            yield _minus(
                "test accuracy", f"{_where(direct)} - hybrid", a[:1], b[:1], metric="test_accuracy", needed=False, margin=SAME
            )


def _s8(cells) -> Iterator[Contrast]:
    for group in _over_steps(_settings(cells, family="snn", input_dropout=False)):
        for few, more in _steps(group):
            a, b = _strongest(cells, more, few)
            if a:
                what = f"{_where(more)} - T={few.timesteps}"
                yield _minus("accuracy", what, a[:1], b[:1], metric="test_accuracy")
                yield _minus("AUC", f"{what}, {_worst_case(a)}", a, b)


def _s9(cells) -> Iterator[Contrast]:
    for cell in cells:
        original = cell._replace(attack=ORIGINALS.get(cell.attack, ""))
        if original in cells:
            yield _minus(cell.attack, f"{_where(cell)}: modified - original", cell, original, margin=SAME)


class Claim(NamedTuple):
    """`needs` says what must be run; without one of `parts` the claim cannot hold; `tpr`: equal AUC is not enough.

    `equal`: the claim compares the risks of different models, which says less when these are not equally accurate.
    """

    sentence: str
    contrasts: Callable[..., Iterator[Contrast]]
    needs: str
    parts: tuple[str, ...] = ()
    tpr: bool = False
    equal: bool = False


CLAIMS = {
    "S1": Claim(
        "RMIA is stronger than Attack-R, and Attack-R stronger than Attack-P (in AUC).",
        _s1,
        "two of rmia, attack_r and attack_p in one setting",
        ("rmia over attack_r", "attack_r over attack_p"),
    ),
    "S2": Claim(
        "A spiking network's risk grows with its number of time steps (in AUC).", _s2, "one attack at two numbers of time steps"
    ),
    "S3": Claim(
        "The ordinary network is more exposed than every spiking one under the same treatment (in AUC).",
        _s3,
        "one attack on both families, with and without input dropout",
        ("without dropout", "with dropout"),
        equal=True,
    ),
    "S4": Claim(
        "Input dropout strengthens RMIA on spiking networks (in AUC).",
        _s4,
        "rmia on a spiking network with and without input dropout",
    ),
    "S5": Claim(
        "Input dropout helps RMIA with ANN references too (in AUC).",
        _s5,
        "rmia with ANN references, with and without input dropout",
    ),
    "S6": Claim(
        "ANN references are weaker than the target's own family, but better than a coin (in AUC).",
        _s6,
        "rmia with ANN references and with the target's own family",
        ("weaker than own", "better than a coin"),
    ),
    "S7": Claim(
        f"At equal time steps the risk does not depend on the training method (AUC within {SAME}).",
        _s7,
        "direct and hybrid training at the same number of time steps",
        equal=True,
    ),
    "S8": Claim(
        "Test accuracy and AUC both rise with the number of time steps.",
        _s8,
        "plain queries at two numbers of time steps",
        ("accuracy", "AUC"),
    ),
    "S9": Claim(
        f"The modified scores give the ROC of the original ones (AUC and TPR within {SAME}).",
        _s9,
        " or ".join(f"{original} beside {modified}" for modified, original in ORIGINALS.items()),
        tpr=True,
    ),
}


def snn_comparisons(cells: dict[Cell, Scores], *, draws: int = 1000, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """One row per comparison that a claim of the spiking study (Guan et al. 2025) rests on, as far as it was run.

    Columns: claim, part, compared, metric (auc, test_accuracy, and the TPR at the smallest FPR that all cells can measure),
    needed (decides the claim), value, low, high (at `level`), sure_low, sure_high (all comparisons of a part that decides
    nothing, or of all parts that do, jointly: level 1 - (1 - level) / comparisons), margin, outcome "for" | "against" | "open".
    Intervals are paired: the wider of the bootstrap over samples and pairs of targets, the same draws in every cell, and
    Student's t over pairs; for accuracies t alone. ValueError when the cells' targets were trained on different masks.
    "for": [low, high] above 0 (or within +-margin); "against": [sure_low, sure_high] below 0 (or outside +-margin). With one
    pair of targets everything is "open": intervals are then over samples alone, and do not show what training changes.
    Caveat: references are shared and samples of an accuracy are fixed, which no interval covers.
    """
    cells = checked(cells)
    _same_masks(cells)
    n0 = min(map(fewest_non_members, cells.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)
    measured: dict[Cell, tuple] = {}
    frames = [_compared(name, claim, cells, tpr, measured, draws, level, seed) for name, claim in CLAIMS.items()]
    return pd.DataFrame([row for frame in frames for row in frame], columns=COLUMNS).astype({"needed": bool})


COLUMNS = [
    "claim", "part", "compared", "metric", "needed", "value", "low", "high", "sure_low", "sure_high", "margin", "outcome",
]  # fmt: skip


def _same_masks(cells: dict[Cell, Scores]):
    """A pairing needs row k of every cell to be a model trained on the same samples."""
    units = {cell: np.unique(scores.pair, return_inverse=True)[1] for cell, scores in cells.items()}
    for cell, scores in cells.items():
        first = next(iter(cells))
        if not (np.array_equal(scores.member, cells[first].member) and np.array_equal(units[cell], units[first])):
            raise ValueError(
                f"{_where(cell)} and {_where(first)} have different membership: claims need pools trained on the same masks "
                "and the same targets of each"
            )


def _compared(name: str, claim: Claim, cells, tpr, measured, draws, level, seed) -> list[dict]:
    """The rows of one claim; every AUC that decides gets its TPR beside it."""
    asked = []
    for contrast in claim.contrasts(cells):
        asked.append(contrast)
        if contrast.metric == "auc" and contrast.needed and tpr:
            asked.append(contrast._replace(metric=tpr, needed=claim.tpr))
    jointly = pd.Series([_family(contrast) for contrast in asked], dtype=object).value_counts()
    rows = []
    for contrast in asked:
        for cell in (cell for _, side in contrast.terms for cell in side):
            if cell not in measured:
                sampled = bootstrap(cells[cell], FPR, draws=draws, seed=seed)
                measured[cell] = per_target_metrics(cells[cell], FPR), sampled, cells[cell]
        sure = 1 - (1 - level) / jointly[_family(contrast)]
        value, (low, high), (sure_low, sure_high) = _difference(contrast, measured, (level, sure))
        m = contrast.margin
        holds = low > 0 if not m else -m < low and high < m
        fails = sure_high < 0 if not m else sure_low > m or sure_high < -m
        alone = _one_pair(measured[contrast.terms[0][1][0]][2])  # then the intervals are of samples only
        outcome = "open" if alone else "for" if holds else "against" if fails else "open"
        record = (name, contrast.part, contrast.compared, contrast.metric, contrast.needed, value)
        rows.append(dict(zip(COLUMNS, (*record, low, high, sure_low, sure_high, m, outcome), strict=True)))
    return rows


def _one_pair(scores: Scores) -> bool:
    return len(np.unique(scores.pair)) < 2


def _family(contrast: Contrast) -> str:
    """Comparisons whose errors are counted together."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _difference(contrast: Contrast, measured, levels) -> tuple:
    """(value, interval per level): the wider of paired bootstrap and Student's t over pairs of targets."""
    total, sampled, metric = 0.0, 0.0, contrast.metric
    for sign, side in contrast.terms:
        if metric == "test_accuracy":
            per_target = [measured[cell][2].accuracy[:, 1] for cell in side]
        else:
            per_target = [measured[cell][0][:, names(FPR).index(metric)] for cell in side]
            sampled = sampled + sign * np.max([measured[cell][1][metric] for cell in side], axis=0)
        total = total + sign * max(per_target, key=np.mean)
    if contrast.chance:
        coin = 0.5 if metric == "auc" else float(metric.removeprefix("tpr@"))
        total, sampled = total - coin, sampled - coin
    pair = measured[contrast.terms[0][1][0]][2].pair
    both = []
    for level in levels:
        ends = [t_interval(total, pair, confidence=level)]
        if metric != "test_accuracy":
            ends.append(percentile(sampled, level))
        both.append(max(ends, key=lambda end: np.nan_to_num(end[1] - end[0], nan=-1.0)))
    return total.mean(), *both


def snn_claims(cells: dict[Cell, Scores], *, draws: int = 1000, level: float = 0.95, seed: int = 0) -> pd.DataFrame:
    """Verdicts on the claims of the spiking study (Guan et al. 2025): index S1..S9.

    Columns: claim, verdict, evidence, compared, accuracy_apart (the largest difference of mean test accuracy between models
    that a deciding comparison sets against each other, in points, 1 = 1 %; NaN where it sets none but the same ones).
    "holds": every comparison that the claim needs is for it at `level`; "does not hold": one is against it with all of them
    taken jointly (`snn_comparisons` has each), so that many comparisons do not refute by chance; "not run": nothing to compare;
    else "not resolved", also when what was run is for it but a part that it needs is missing. Where aligned references were run
    S6 needs them too; without them its evidence says so. "holds" and "does not hold" of S3 and S7 are followed by
    " (at unequal accuracy)" above 1 point.
    Caveat: comparisons are at the accuracies that the evidence states, rarely equal ones; claims are not corrected for each
    other, nor for the choice of data.
    """
    table = snn_comparisons(cells, draws=draws, level=level, seed=seed)
    cells = checked(cells)
    rows = {}
    for name, claim in CLAIMS.items():
        found = table[table["claim"] == name]
        needed, contrasts = found[found["needed"]], list(claim.contrasts(cells))
        apart = _apart([contrast for contrast in contrasts if contrast.needed], cells)
        missing = [part for part in claim.parts if part not in set(needed["part"])]
        evidence = [
            *_evidence(found),
            *(f"{part}: not run" for part in missing),
            *_alignment(needed),
            *_caveats(contrasts, cells),
        ]
        rows[name] = {
            "claim": claim.sentence,
            "verdict": _verdict(needed, missing, unequal=claim.equal and apart > SAME + 1e-9),
            "evidence": "; ".join(evidence) if len(found) else f"not run: needs {claim.needs}",
            "compared": "; ".join(dict.fromkeys(needed["compared"])),
            "accuracy_apart": 100 * apart,
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("id")


def _verdict(needed: pd.DataFrame, missing, *, unequal: bool) -> str:
    """In words; only what is decided can rest on unequal accuracy."""
    if not len(needed):
        return "not run"
    at = " (at unequal accuracy)" if unequal else ""
    if (needed["outcome"] == "against").any():
        return "does not hold" + at
    return "holds" + at if (needed["outcome"] == "for").all() and not missing else "not resolved"


def _evidence(found: pd.DataFrame) -> Iterator[str]:
    """A phrase per part: counts, and the comparison that is least for the claim; of a TPR that decides nothing the counts."""
    for (part, metric), group in found.groupby(["part", "metric"], sort=False):
        least, tpr = _least(group), metric.startswith("tpr@")
        texts = [f"{(group['outcome'] == side).sum()} of {len(group)} {side}" for side in ("for", "against")]
        if not tpr or least["needed"]:
            interval = f"{least['compared']} {least['value']:+.3f} [{least['low']:+.3f}, {least['high']:+.3f}]"
            texts = [*texts, f"least {interval}"] if len(group) > 1 else [interval]
        yield f"{part}{f' {metric}' if tpr else ''}: {', '.join(texts)}"


def _alignment(needed: pd.DataFrame) -> Iterator[str]:
    """References of another family may be weaker by their scale alone: what remains when both sides are aligned."""
    plain, aligned = (needed[needed["part"] == f"weaker than own{how}"]["outcome"] for how in ("", ", aligned"))
    if len(plain) and not len(aligned):
        yield "without alignment: part of the difference may be one of scale"
    elif len(plain) and (plain == "for").all() and not (aligned == "for").all():
        yield "weaker without alignment only"


def _least(group: pd.DataFrame) -> pd.Series:
    """The smallest difference; under a margin the largest in size."""
    size = group["value"].where(group["margin"] == 0, -group["value"].abs())
    return group.loc[size.idxmin()]


def _sides(contrasts: list[Contrast]) -> list[list[Cell]]:
    """The cells that each contrast compares."""
    return [[cell for _, side in contrast.terms for cell in side] for contrast in contrasts]


def _accuracy(contrasts: list[Contrast], cells: dict[Cell, Scores]) -> dict[str, np.ndarray]:
    """Mean train and test accuracy of all models compared."""
    accuracy: dict[str, np.ndarray] = {}
    for cell in sorted({cell for side in _sides(contrasts) for cell in side}):  # plain sorts first: the model as it is used
        accuracy.setdefault(_who(cell), cells[cell].accuracy.mean(0))
    return accuracy


def _apart(contrasts: list[Contrast], cells: dict[Cell, Scores]) -> float:
    """Largest difference of test accuracy inside a contrast of different models; NaN without one."""
    accuracy = _accuracy(contrasts, cells)
    models = [{_who(cell) for cell in side} for side in _sides(contrasts)]
    return max((float(np.ptp([accuracy[who][1] for who in side])) for side in models if len(side) > 1), default=np.nan)


def _caveats(contrasts: list[Contrast], cells: dict[Cell, Scores]) -> Iterator[str]:
    """Train and test accuracy of everything compared, how unequal, and too few targets."""
    accuracy = _accuracy(contrasts, cells).items()
    yield "train / test accuracy " + ", ".join(f"{who} {a:.3f} / {b:.3f}" for who, (a, b) in accuracy)
    if (apart := _apart(contrasts, cells)) > 0:
        yield f"compared at test accuracies up to {apart:.3f} apart"
    if contrasts and _one_pair(scores := cells[contrasts[0].terms[0][1][0]]):
        yield "one pair of targets does not show training randomness: nothing is decided"
    elif contrasts and not two_way(scores):
        yield f"{len(scores.value)} targets: training randomness not covered"
