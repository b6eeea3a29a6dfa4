"""Verdicts on the claims of the study of neural ODE and SDE classifiers, from paired differences between settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations

import pandas as pd
from scipy.stats import t as student

from mia_nb.metrics.contrasts import (
    COLUMNS,
    SAME,
    TPR,
    Claim,
    Contrast,
    at_unequal_accuracy,
    compare,
    judge,
    minus,
    row_of,
    steps,
    strongest,
    worst_case,
)
from mia_nb.metrics.flow_published import ADAPTIVE, NEAR, FlowCell, flow_checked
from mia_nb.metrics.frontier import matched
from mia_nb.types import Scores

VARIANTS = {"SONODE": "sonode", "ANODE": "anode", "HBNODE": "hbnode"}
SIGMA = 2.0  # the study's SDENet
LARGE_K, LARGE_SD = 0.6, 2.4  # its largest noise per step at T = 1, and what 16 steps add up to
TENFOLD, HUNDREDFOLD = 10.0, 100.0
AT_EQUAL = {"test_acc": "at equal accuracy", "gap": "at equal gap"}
LEVEL_OF = {"test_acc": "test accuracy", "gap": "gap"}


def _who(cell: FlowCell) -> str:
    return cell.label + (f", {cell.queries} queries" if cell.queries > 1 else "")


def _settings(cells, **wanted) -> list[FlowCell]:
    """Distinct settings with these fields, attack left blank, fewest blocks and queries first."""
    found = (cell for cell in cells if all(getattr(cell, name) == value for name, value in wanted.items()))
    return sorted({cell._replace(attack="") for cell in found})


def _most_asked(settings: list[FlowCell]) -> list[FlowCell]:
    """Of settings that differ in queries alone the most: the strongest attacker that was run."""
    return list({cell._replace(queries=1): cell for cell in settings}.values())


def _on(settings: list[FlowCell]) -> list[FlowCell]:
    return [cell for cell in settings if cell.noise and cell.noise_train]


def _noisy(cells, model: str = "sdenet") -> list[FlowCell]:
    """Settings with noise on in training and asking."""
    return [cell for cell in _on(_settings(cells, model=model)) if cell.k]


def _alike(candidates: list[FlowCell], cell: FlowCell) -> list[FlowCell]:
    """Of the candidates those that share most of blocks, solver, steps and T with the cell."""

    def shared(other: FlowCell) -> int:
        return sum(getattr(other, name) == getattr(cell, name) for name in ("blocks", "method", "steps", "T"))

    most = max(map(shared, candidates), default=0)
    return [other for other in candidates if shared(other) == most]


def _odenets(cells, **wanted) -> list[FlowCell]:
    """ODENets; the same network called an SDENet of sigma 0 where there is none."""
    return _settings(cells, model="odenet", **wanted) or _settings(cells, model="sdenet", k=0.0, **wanted)


def _studied(cells) -> list[FlowCell]:
    """The ODENets that the study compares with ResNet-14: its Euler solver where it was run."""
    return [cell for cell in _odenets(cells, blocks=1) if cell.method == "euler"] or _odenets(cells, blocks=1)


def _sdenets(cells) -> list[FlowCell]:
    """The SDENets that the study compares with others, noise on or off: one block, sigma 2, T = 1, its 16 steps where run."""
    settings = _settings(cells, model="sdenet", blocks=1, T=1.0)
    found = [cell for cell in settings if cell.k and abs(cell.sigma - SIGMA) < NEAR]
    return [cell for cell in found if cell.steps == 16] or found


def _versus(cells, part: str, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    """a - b by the strongest of the attacks that both have, with options of the contrast."""
    side_a, side_b = strongest(cells, a, b)
    if side_a:
        yield minus(part, f"{_who(a)} - {_who(b)}, {worst_case(side_a)}", side_a, side_b, **options)


def _ratio(cells, part: str, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    for contrast in _versus(cells, part, a, b, metric=TPR, ratio=True, **options):
        yield contrast._replace(compared=contrast.compared.replace(" - ", " / ", 1))


def _by_attack(cells, a: FlowCell, b: FlowCell) -> Iterator[Contrast]:
    """a - b attack by attack; decides nothing."""
    for side_a, side_b in zip(*strongest(cells, a, b), strict=True):
        yield minus(side_a.attack, f"{_who(a)} - {_who(b)}", side_a, side_b, needed=False)


def _gap(cells, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    """Difference of train-test gaps, which all attacks on a model share."""
    side_a, side_b = strongest(cells, a, b)
    if side_a:
        yield minus("gap", f"{_who(a)} - {_who(b)}", side_a[:1], side_b[:1], metric="gap", **options)


def _d1(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for node in _studied(cells):
            yield from _versus(cells, "AUC", resnet, node)
            yield from _ratio(cells, "ratio", resnet, node, needed=False, above=1.0)
            yield from _by_attack(cells, resnet, node)


def _d2(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for node in _studied(cells):
            yield from _gap(cells, resnet, node)


def _d3(cells) -> Iterator[Contrast]:
    for model in ("odenet", "odenet64"):
        for a, b in combinations(_settings(cells, model=model), 2):
            adaptive = a.method in ADAPTIVE or b.method in ADAPTIVE
            same_steps = b._replace(steps=a.steps) if adaptive else b
            if a.method == b.method or a._replace(method=b.method) != same_steps:
                continue
            a, b = (b, a) if a.method in ADAPTIVE else (a, b)
            yield from _versus(cells, "solvers", a, b, margin=SAME)
            if b.method in ADAPTIVE and a.method not in ADAPTIVE:
                yield from _versus(cells, "adaptive below fixed", a, b, needed=False)


def _over(settings: list[FlowCell], varied: str) -> list[list[FlowCell]]:
    """Groups that differ in nothing but `varied`; of those that also differ in queries the most asked that has two members."""
    groups: dict[FlowCell, list[FlowCell]] = {}
    for cell in sorted(settings, key=lambda cell: (cell.queries, getattr(cell, varied))):
        groups.setdefault(cell._replace(**{varied: 1}), []).append(cell)
    return list({key._replace(queries=1): group for key, group in groups.items() if len(group) > 1}.values())


def _d4(cells) -> Iterator[Contrast]:
    for group in _over([*_odenets(cells), *_settings(cells, model="odenet64")], "blocks"):
        for few, more in steps(group):
            yield from _versus(cells, "ODENet", more, few)
    for group in _over(_noisy(cells), "blocks"):
        for few, more in steps(group):
            yield from _versus(cells, "SDENet", few, more, above=-SAME)


def _d5(cells) -> Iterator[Contrast]:
    for part, model in VARIANTS.items():
        for variant in _settings(cells, model=model, blocks=1):
            for base in _alike(_settings(cells, model="odenet64", blocks=1), variant):
                yield from _versus(cells, part, base, variant)
                yield from _gap(cells, base, variant, needed=False)


def _d6(cells) -> Iterator[Contrast]:
    sdenets = _on(_sdenets(cells))
    decisive = _most_asked(sdenets)
    for sdenet in sdenets:
        needed, count = sdenet in decisive, f"{sdenet.queries} quer{'y' if sdenet.queries == 1 else 'ies'}"
        for node in _alike(_odenets(cells, blocks=1), sdenet):
            yield from _versus(cells, "most queries" if needed else count, node, sdenet, needed=needed)
            if needed:
                yield from _ratio(cells, "ratio", node, sdenet, needed=False, above=1.0)
                quiet = sdenet._replace(noise=False, queries=1)
                yield from _versus(cells, "noise off when asked", node, quiet, needed=False)


def _d7(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for sdenet in _most_asked(_on(_sdenets(cells))):
            yield from _ratio(cells, "at least 10 times", resnet, sdenet, above=TENFOLD)
            yield from _ratio(cells, "at least 100 times", resnet, sdenet, above=HUNDREDFOLD, needed=False)


def _d9(cells) -> Iterator[Contrast]:
    """Noise nowhere against ResNet-14; then what noise in training, in asking, and in both adds to that."""
    built = _sdenets(cells)
    never = [cell for cell in built if not (cell.noise_train or cell.noise)]
    zero = _settings(cells, model="sdenet", k=0.0, blocks=1)
    alike = [cell for one in built for cell in _alike(zero or _odenets(cells, blocks=1), one)]
    for quiet in dict.fromkeys([*(alike or zero or _studied(cells)), *never]):
        for resnet in _settings(cells, model="resnet14"):
            yield from _versus(cells, "no noise", resnet, quiet)
            yield from _ratio(cells, "ratio", resnet, quiet, needed=False, above=1.0)
        for cell in _most_asked([cell for cell in built if cell not in never]):
            where = {(True, True): "both", (True, False): "training alone", (False, True): "asking alone"}
            part = f"gain of noise in {where[cell.noise_train, cell.noise]}"
            yield from _versus(cells, part, quiet, cell, needed=False)


def _d11(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for replaced in _most_asked(_noisy(cells, "replaced")):
            yield from _versus(cells, "AUC", resnet, replaced)
            yield from _ratio(cells, "ratio", resnet, replaced, needed=False, above=1.0)
            yield from _by_attack(cells, resnet, replaced)


def _d12(cells) -> Iterator[Contrast]:
    for sdenet in _most_asked([cell for cell in _noisy(cells) if cell.k > LARGE_K - 1e-9 and cell.noise_sd > LARGE_SD - 1e-9]):
        (side,) = strongest(cells, sdenet)
        compared = f"{_who(sdenet)}, {worst_case(side)}"
        yield Contrast("above a coin", compared, ((1, side),), margin=SAME, chance=True)


def _one_sigma(settings: list[FlowCell]) -> Iterator[list[FlowCell]]:
    """Groups of the same sigma, to 5 %: k may be given rounded."""
    group: list[FlowCell] = []
    for cell in sorted(settings, key=lambda cell: cell.sigma):
        if group and not math.isclose(cell.sigma, group[0].sigma, rel_tol=0.05):
            yield group
            group = []
        group.append(cell)
    yield group


def _d13(cells) -> Iterator[Contrast]:
    for group in _one_sigma(_noisy(cells)):
        sigma = {cell._replace(k=group[0].k): cell for cell in group}  # k follows from sigma, steps and T
        for varied in ("T", "steps"):
            for row in _over(list(sigma), varied):
                for less, more in steps(row):
                    yield from _versus(cells, varied, sigma[more], sigma[less], margin=SAME)


CLAIMS = {
    "D1": Claim(
        "A neural ODE (ODENet of one block) is less exposed than ResNet-14 (in AUC of the strongest attack).",
        _d1,
        "one attack on ResNet-14 and on an ODENet of one block",
        equal=True,
        matched="test_acc",
    ),
    "D2": Claim(
        "A neural ODE is less exposed than ResNet-14 because it overfits less: its train-test gap is smaller, and at an equal "
        f"gap no difference is left (AUC within {SAME}).",
        _d2,
        "ResNet-14 and an ODENet of one block, and checkpoints of both",
        ("gap", "at equal gap"),
        matched="gap",
    ),
    "D3": Claim(
        f"The solver hardly matters, and an adaptive one is no riskier (AUC within {SAME} of each other).",
        _d3,
        "one ODENet with two solvers",
        equal=True,
    ),
    "D4": Claim(
        f"More blocks raise the risk of ODENets (in AUC) and not that of SDENets (by no more than {SAME}).",
        _d4,
        "ODENets and SDENets of two numbers of blocks",
        ("ODENet", "SDENet"),
        equal=True,
        matched="test_acc",
    ),
    "D5": Claim(
        "SONODE, ANODE and HBNODE are less exposed than ODENet-64 (in AUC of the strongest attack).",
        _d5,
        "ODENet-64 and a variant of it",
        tuple(VARIANTS),
        equal=True,
        matched="test_acc",
    ),
    "D6": Claim(
        "A neural SDE (SDENet of sigma 2) is less exposed than the ODENet, also to an attacker who asks it as often as was "
        "tried (in AUC of the strongest attack).",
        _d6,
        "one attack on an ODENet and on an SDENet of sigma 2, T = 1 and one block",
        equal=True,
        matched="test_acc",
    ),
    "D7": Claim(
        "ResNet-14 is more exposed than the SDENet (sigma 2) by orders of magnitude: its TPR at the smallest measurable FPR "
        "is at least 10 times as large (the study says two orders and prints 28 times).",
        _d7,
        "one attack on ResNet-14 and on an SDENet of sigma 2, T = 1 and one block, with non-members enough for a low FPR",
        equal=True,
    ),
    "D9": Claim(
        "Even without noise (sigma 0) the network is less exposed than ResNet-14 (in AUC of the strongest attack).",
        _d9,
        "one attack on ResNet-14 and on an SDENet of sigma 0 or an ODENet",
        equal=True,
        matched="test_acc",
    ),
    "D11": Claim(
        "ResNet-14 with its last group replaced by an SDE and fine-tuned is less exposed than ResNet-14 (in AUC of the "
        "strongest attack).",
        _d11,
        "one attack on ResNet-14 and on one with its last group replaced by an SDE",
        equal=True,
        matched="test_acc",
    ),
    "D12": Claim(
        f"Large noise (k of {LARGE_K} and more over 16 steps) removes the risk (AUC of the strongest attack within {SAME} "
        "of 0.5).",
        _d12,
        f"one attack on an SDENet of k {LARGE_K} or more and noise_sd {LARGE_SD} or more",
    ),
    "D13": Claim(
        f"Integration time and number of steps have little influence at a fixed sigma (AUC within {SAME}).",
        _d13,
        "SDENets of one sigma that differ in T alone, and in steps alone",
        ("T", "steps"),
        equal=True,
    ),
}


def flow_comparisons(
    cells: dict[FlowCell, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per comparison that a claim of Hong, Wu, Gruber and Lee (arXiv 2501.06686) rests on, as far as it was run.

    Columns and intervals as in `snn_comparisons`; metric may be gap (train minus test accuracy) and "ratio of tpr@x", whose
    interval covers the bootstrap's and Fieller's. A stochastic model is taken with the most queries that were run.
    frontier: `metrics.frontier` of checkpoints, families named by `FlowCell.label`. Then comparisons of models are repeated
    "at equal accuracy" (D1, D4 to D6, D9, D11; needed=False) and "at equal gap" (D2; decides): `metrics.matched`, strongest
    attack, at the highest of its default levels that two pairs of both families reach, Student's t over pairs.
    "against" at equal accuracy also says that nothing is left: the joint interval lies within +-0.01. "for" is as elsewhere.
    Raises ValueError for settings that cannot be, and for cells trained on different masks.
    Caveats: a frontier has its own number of queries; at its highest levels fewer pairs may be left, as the row says.
    """
    cells = flow_checked(cells)
    table = compare(CLAIMS, cells, _who, draws=draws, level=level, seed=seed)
    rows = [] if frontier is None else [row for name in CLAIMS for row in _at_one_level(name, cells, frontier, level)]
    if not rows:
        return table
    table = pd.concat([table, pd.DataFrame(rows, columns=COLUMNS)], ignore_index=True)
    order = table["claim"].map(list(CLAIMS).index)
    return table.iloc[order.argsort(kind="stable")].reset_index(drop=True)


def _at_one_level(name: str, cells, frontier: pd.DataFrame, level: float) -> list[dict]:
    """The contrasts of one claim that decide, at equal accuracy or gap, as far as checkpoints of both families are there."""
    claim, by = CLAIMS[name], CLAIMS[name].matched
    deciding = [c for c in claim.contrasts(cells) if c.needed and c.metric == ("gap" if by == "gap" else "auc")] if by else []
    found = []
    for contrast in deciding:
        a, b = (side[0].label for _, side in contrast.terms)
        if a != b and {a, b} <= set(frontier["family"]) and (top := _highest(frontier, a, b, by)) is not None:
            found.append((contrast, a, b, top))
    sure, rows = 1 - (1 - level) / max(len(found), 1), []
    for contrast, a, b, top in found:
        value, ends, sure_ends = top["difference"], _student(top, level), _student(top, sure)
        what = f"{a} - {b} at {LEVEL_OF[by]} {top['level']:.3f} ({top['difference_pairs']} pairs)"
        options = {"part": AT_EQUAL[by], "compared": what, "metric": "auc", "needed": by == "gap"}
        row = row_of(name, contrast._replace(**options, margin=SAME if by == "gap" else 0.0), value, ends, sure_ends)
        gone = contrast.above == 0 and sure_ends[0] > -SAME and sure_ends[1] < SAME
        rows.append(row | ({"outcome": "against"} if by == "test_acc" and gone else {}))
    return rows


def _highest(frontier: pd.DataFrame, a: str, b: str, by: str) -> pd.Series | None:
    """a minus b at the highest level that two pairs of both reach, None without one."""
    both = matched(frontier[frontier["family"].isin([a, b])], by=by, metric="auc", baseline=b)
    both = both[(both["family"] == a) & (both["difference_pairs"] >= 2)]
    return both.loc[both["level"].idxmax()] if len(both) else None


def _student(row: pd.Series, level: float) -> tuple[float, float]:
    """The 95 % interval of a matched difference at another level."""
    half = (row["difference_high"] - row["difference_low"]) / 2
    scale = student.ppf([(1 + level) / 2, 0.975], row["difference_pairs"] - 1)
    half = half * scale[0] / scale[1]
    return row["difference"] - half, row["difference"] + half


def flow_claims(
    cells: dict[FlowCell, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = 1000,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Verdicts on claims of Hong, Wu, Gruber and Lee (arXiv 2501.06686): index D1 to D7, D9, D11 to D13.

    Columns and verdicts as in `snn_claims`: "holds", "does not hold", "not resolved", "not run", from `flow_comparisons`.
    What compares models of test accuracies more than 1 point apart is followed by " (at unequal accuracy)"; with a
    `frontier` by " (also at equal accuracy)" where every comparison that decides comes out the same there. What holds as the
    models are, but where a comparison at equal accuracy is against it or finds nothing left, is "not at equal accuracy".
    D7 asks for 10 times, and is "not resolved" at best where the FPR that can be measured is so large that a model at chance
    allows no such ratio. D12: an AUC resolved below 0.5 is no absence of risk but a failed design, and is said to be so.
    Defenses (D8, D15) and accounting (D10, D14) have no place here.
    Caveat: verdicts are about the attacks that were run, on these data, and not a statement on what any attack could find.
    """
    table = flow_comparisons(cells, frontier=frontier, draws=draws, level=level, seed=seed)
    extra = partial(_remarks, checkpoints=frontier is not None)
    return judge(CLAIMS, flow_checked(cells), table, _who, extra=extra, qualify=_qualified)


def _remarks(found: pd.DataFrame, checkpoints: bool) -> Iterator[str]:
    """What a reader must know beside the verdict: what was not matched, ratios out of reach, and an AUC below chance."""
    asked, there = _asked(found), (found["part"] == AT_EQUAL["test_acc"]).sum()
    if checkpoints and there < asked and CLAIMS[found["claim"].iloc[0]].matched == "test_acc":
        yield f"at equal accuracy: {asked - there} of {asked} not compared (no checkpoints, or no level that both pass)"
    for metric in found.loc[found["metric"].str.startswith("ratio"), "metric"].unique():
        most = 1 / float(metric.rpartition("@")[2])
        if most < HUNDREDFOLD:
            yield f"at this FPR a model at chance allows ratios up to {most:.0f} only"
    if _below_chance(found):
        yield "design check failed: AUC below 0.5, a wrong sign or an effect of the design and no absence of risk"


def _asked(found: pd.DataFrame) -> int:
    """How many comparisons of AUC decide."""
    return int((found["needed"] & (found["metric"] == "auc")).sum())


def _below_chance(found: pd.DataFrame) -> bool:
    coin = found[found["part"] == "above a coin"]
    return bool((coin.loc[coin["metric"] == "auc", "sure_high"] < 0).any())


def _qualified(verdict: str, found: pd.DataFrame, unequal: bool) -> str:
    """The verdict with what comparisons at equal accuracy make of it."""
    if _below_chance(found):
        return "not resolved (design check failed)"
    there = found.loc[found["part"] == AT_EQUAL["test_acc"], "outcome"]
    against = (there == "against").any()
    if verdict == "holds" and against:
        return "not at equal accuracy"
    same = (
        len(there) == _asked(found) and (there == "for").all() if verdict == "holds" else against and verdict == "does not hold"
    )
    if same and len(there):
        return f"{verdict} (also at equal accuracy)"
    return at_unequal_accuracy(verdict, found, unequal)
