"""Verdicts on the claims of the study of neural ODE and SDE classifiers, from paired differences between settings."""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import partial
from itertools import combinations, product

import pandas as pd

from mia_nb.checks import checked
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
from mia_nb.metrics.frontier import highest_level, matched
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.types import Scores

VARIANTS = {"SONODE": "sonode", "ANODE": "anode", "HBNODE": "hbnode"}
SIGMA = 2.0  # the study's SDENet
ROUNDING = 1e-3  # of sigma, where k was not given in full
LARGE_K, LARGE_SD = 0.6, 2.4  # its largest noise per step at T = 1, and what 16 steps add up to
TENFOLD, HUNDREDFOLD = 10.0, 100.0
NOISE_IN = {
    (True, True): "both",
    (True, False): "training alone",
    (False, True): "asking alone",
    (False, False): "neither",
}
AT_EQUAL = {"test_acc": "at equal accuracy", "gap": "at equal gap"}
LEVEL_OF = {"test_acc": "test accuracy", "gap": "gap"}


def _who(cell: FlowCell) -> str:
    return cell.label + (f", {cell.queries} queries" if cell.queries > 1 else "")


def _settings(cells, **wanted) -> list[FlowCell]:
    """Distinct settings with these fields, attack left blank, fewest blocks and queries first."""
    found = (
        cell
        for cell in cells
        if all(getattr(cell, name) == value for name, value in wanted.items())
    )
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
        return sum(
            getattr(other, name) == getattr(cell, name)
            for name in ("blocks", "method", "steps", "T")
        )

    most = max(map(shared, candidates), default=0)
    return [other for other in candidates if shared(other) == most]


def _odenets(cells, **wanted) -> list[FlowCell]:
    """ODENets; the same network called an SDENet of sigma 0 where there is none."""
    return _settings(cells, model="odenet", **wanted) or _settings(
        cells, model="sdenet", k=0.0, **wanted
    )


def _studied(cells) -> list[FlowCell]:
    """The ODENets that the study compares with ResNet-14: its Euler solver where it was run."""
    return [cell for cell in _odenets(cells, blocks=1) if cell.method == "euler"] or _odenets(
        cells, blocks=1
    )


def _sdenets(cells) -> list[FlowCell]:
    """The SDENets that the study compares with others, noise on or off: one block, sigma 2, T = 1, its 16 steps where run."""
    settings = _settings(cells, model="sdenet", blocks=1, T=1.0)
    found = [cell for cell in settings if cell.k and abs(cell.sigma - SIGMA) < NEAR]
    return [cell for cell in found if cell.steps == 16] or found


def _versus(cells, part: str, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    """a - b by the strongest of the attacks that both have, with options of the contrast."""
    side_a, side_b = strongest(cells, a, b)
    if side_a:
        yield minus(
            part, f"{_who(a)} - {_who(b)}, {worst_case(side_a, side_b)}", side_a, side_b, **options
        )


def _ratio(cells, part: str, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    for contrast in _versus(cells, part, a, b, metric=TPR, ratio=True, **options):
        yield contrast._replace(compared=contrast.compared.replace(" - ", " / ", 1))


def _by_attack(cells, a: FlowCell, b: FlowCell) -> Iterator[Contrast]:
    """a - b attack by attack; decides nothing."""
    side_a, side_b = ({cell.attack: cell for cell in side} for side in strongest(cells, a, b))
    for attack in (word for word in side_a if word in side_b):
        yield minus(attack, f"{_who(a)} - {_who(b)}", side_a[attack], side_b[attack], needed=False)


def _gap(cells, a: FlowCell, b: FlowCell, **options) -> Iterator[Contrast]:
    """Difference of train-test gaps, which all attacks on a model share."""
    side_a, side_b = strongest(cells, a, b)
    if side_a:
        yield minus(
            "gap", f"{_who(a)} - {_who(b)}", side_a[:1], side_b[:1], metric="gap", **options
        )


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
    return list(
        {key._replace(queries=1): group for key, group in groups.items() if len(group) > 1}.values()
    )


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
        needed, count = (
            sdenet in decisive,
            f"{sdenet.queries} quer{'y' if sdenet.queries == 1 else 'ies'}",
        )
        for node in _alike(_odenets(cells, blocks=1), sdenet):
            yield from _versus(
                cells, "most queries" if needed else count, node, sdenet, needed=needed
            )
            if needed:
                yield from _ratio(cells, "ratio", node, sdenet, needed=False, above=1.0)
                quiet = sdenet._replace(noise=False, queries=1)
                yield from _versus(cells, "noise off when asked", node, quiet, needed=False)


def _d7(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for sdenet in _most_asked(_on(_sdenets(cells))):
            yield from _ratio(cells, "at least 10 times", resnet, sdenet, above=TENFOLD)
            yield from _ratio(
                cells, "at least 100 times", resnet, sdenet, above=HUNDREDFOLD, needed=False
            )


def _d9(cells) -> Iterator[Contrast]:
    """Noise nowhere against ResNet-14; then what noise in training, in asking, and in both adds to that."""
    built = _sdenets(cells)
    never = [cell for cell in built if not (cell.noise_train or cell.noise)]
    for quiet in _noiseless(cells):
        for resnet in _settings(cells, model="resnet14"):
            yield from _versus(cells, "no noise", resnet, quiet)
            yield from _ratio(cells, "ratio", resnet, quiet, needed=False, above=1.0)
        for cell in _most_asked([cell for cell in built if cell not in never]):
            part = f"gain of noise in {NOISE_IN[cell.noise_train, cell.noise]}"
            yield from _versus(cells, part, quiet, cell, needed=False)


def _noiseless(cells) -> list[FlowCell]:
    """Networks of sigma 0, most like the SDENets of sigma 2, and these with their noise off in training and asking."""
    built, zero = _sdenets(cells), _settings(cells, model="sdenet", k=0.0, blocks=1)
    alike = [cell for one in built for cell in _alike(zero or _odenets(cells, blocks=1), one)]
    never = [cell for cell in built if not (cell.noise_train or cell.noise)]
    return list(dict.fromkeys([*(alike or zero or _studied(cells)), *never]))


def _noise_not_run(cells) -> list[str]:
    """Where noise could have been on and was not; a network of sigma 0 that is otherwise alike has its noise on nowhere."""
    built = _sdenets(cells)
    run = {(cell.noise_train, cell.noise) for cell in built}
    alike = {(cell.method, cell.steps) for cell in built} & {
        (cell.method, cell.steps) for cell in _noiseless(cells)
    }
    return [
        where
        for on, where in NOISE_IN.items()
        if on not in run and (any(on) or (built and not alike))
    ]


def _d11(cells) -> Iterator[Contrast]:
    for resnet in _settings(cells, model="resnet14"):
        for replaced in _most_asked(_noisy(cells, "replaced")):
            yield from _versus(cells, "AUC", resnet, replaced)
            yield from _ratio(cells, "ratio", resnet, replaced, needed=False, above=1.0)
            yield from _by_attack(cells, resnet, replaced)


def _d12(cells) -> Iterator[Contrast]:
    for sdenet in _most_asked(
        [
            cell
            for cell in _noisy(cells)
            if cell.k > LARGE_K - 1e-9 and cell.noise_sd > LARGE_SD - 1e-9
        ]
    ):
        (side,) = strongest(cells, sdenet)
        compared = f"{_who(sdenet)}, {worst_case(side)}"
        yield Contrast("above a coin", compared, ((1, side),), margin=SAME, chance=True)


def _one_sigma(settings: list[FlowCell]) -> Iterator[list[FlowCell]]:
    """Groups of the same sigma but for rounding."""
    group: list[FlowCell] = []
    for cell in sorted(settings, key=lambda cell: cell.sigma):
        if group and not math.isclose(cell.sigma, group[0].sigma, rel_tol=ROUNDING):
            yield group
            group = []
        group.append(cell)
    yield group


def _d13(cells) -> Iterator[Contrast]:
    for group in _one_sigma(_noisy(cells)):
        sigma: dict[FlowCell, list[FlowCell]] = {}  # k follows from sigma, steps and T
        for cell in group:
            sigma.setdefault(cell._replace(k=group[0].k), []).append(cell)
        for varied in ("T", "steps"):
            for row in _over(list(sigma), varied):
                for less, more in steps(row):
                    for a, b in product(sigma[more], sigma[less]):
                        yield from _versus(cells, varied, a, b, margin=SAME)


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


@checked
def flow_comparisons(
    cells: dict[FlowCell, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per comparison that a claim of Hong, Wu, Gruber and Lee (arXiv 2501.06686) rests on, as far as it was run.

    Columns and intervals as in `snn_comparisons`; metric may be gap (train minus test accuracy) and "ratio of tpr@x", whose
    interval is `ratio_interval`'s. A stochastic model is taken with the most queries that were run. Attacks that
    only stochastic models can be asked (lira_joint) count on their side. Cells with a `variant` are left out.
    frontier: `metrics.frontier` of checkpoints, families named by `FlowCell.label`. Then comparisons of models are repeated
    "at equal accuracy" (D1, D4 to D6, D9, D11; needed=False) and "at equal gap" (D2; decides): `metrics.matched`, the strongest
    of the attacks in the frontier, at the highest of its default levels that two pairs of both families reach. `compared`
    says which attacks these were, and of stochastic models R, the answers averaged.
    "against" at equal accuracy also says that nothing is left: the joint interval lies within +-0.01. "for" is as elsewhere.
    Made with draws=0, a frontier decides nothing ("open"): its intervals do not cover the choice of samples.
    Raises ValueError for settings that cannot be, and for cells trained on different masks.
    Caveats: a frontier has its own number of queries; at its highest levels fewer pairs may be left, as the row says.
    """
    return _compared(_deciding(cells), frontier, draws, level, seed)[0]


def _deciding(cells: dict) -> dict[FlowCell, Scores]:
    """The cells that are the study's."""
    return {cell: scores for cell, scores in flow_checked(cells).items() if not cell.variant}


def _compared(
    cells, frontier, draws: int, level: float, seed: int
) -> tuple[pd.DataFrame, dict[str, str]]:
    """All comparisons, and by claim the R of those at equal accuracy that were asked less than what decides."""
    table = compare(CLAIMS, cells, _who, draws=draws, level=level, seed=seed)
    matches = (
        []
        if frontier is None
        else [one for name in CLAIMS for one in _at_one_level(name, cells, frontier, level)]
    )
    if not matches:
        return table, {}
    table = pd.concat(
        [table, pd.DataFrame([row for row, _ in matches], columns=COLUMNS)], ignore_index=True
    )
    order = table["claim"].map(list(CLAIMS).index)
    fewer: dict[str, dict] = {}
    for row, asked in matches:
        fewer.setdefault(row["claim"], {}).update(dict.fromkeys(asked))
    return table.iloc[order.argsort(kind="stable")].reset_index(drop=True), {
        k: ", ".join(v) for k, v in fewer.items()
    }


def _at_one_level(
    name: str, cells, frontier: pd.DataFrame, level: float
) -> Iterator[tuple[dict, list[str]]]:
    """The contrasts of one claim that decide, at equal accuracy or gap, as far as checkpoints of both families are there.

    Beside each row the R of stochastic families that were asked less along training than in what decides.
    """
    claim, by = CLAIMS[name], CLAIMS[name].matched
    deciding = (
        [
            c
            for c in claim.contrasts(cells)
            if c.needed and c.metric == ("gap" if by == "gap" else "auc")
        ]
        if by
        else []
    )
    found = []
    for contrast in deciding:
        a, b = (side[0] for _, side in contrast.terms)
        if a.label != b.label and {a.label, b.label} <= set(frontier["family"]):
            pair = frontier[frontier["family"].isin([a.label, b.label])]
            if (top := highest_level(pair, a.label, b.label, by)) is not None:
                found.append((contrast, pair, a, b, top))
    sure = 1 - (1 - level) / max(len(found), 1)
    for contrast, pair, a, b, top in found:
        options = {"by": by, "baseline": b.label, "levels": [top]}
        there, surely = (
            matched(pair, **options, confidence=one).set_index("family") for one in (level, sure)
        )
        yield _matched_row(name, contrast, by, (a, b), there, surely.loc[a.label])


def _matched_row(
    name: str, contrast: Contrast, by: str, sides, there: pd.DataFrame, surely: pd.Series
):
    (a, b), one = sides, there.loc[sides[0].label]
    asked = {cell: there.loc[cell.label, "queries"] for cell in sides if cell.stochastic}
    said = {
        cell: f"R = {count:g}" if pd.notna(count) else "R not known"
        for cell, count in asked.items()
    }
    words = [
        " against ".join(dict.fromkeys(there.loc[[a.label, b.label], "attack"])),
        " against ".join(dict.fromkeys(said.values())),
    ]
    words += [] if one["over_samples"] else ["samples not drawn: decides nothing"]
    what = f"{a.label} - {b.label} at {LEVEL_OF[by]} {one['level']:.3f} ({one['difference_pairs']} pairs)"
    options = {
        "part": AT_EQUAL[by],
        "compared": ", ".join(filter(None, [what, *words])),
        "metric": "auc",
        "needed": by == "gap",
    }
    ends, sure_ends = ((row["difference_low"], row["difference_high"]) for row in (one, surely))
    contrast = contrast._replace(**options, margin=SAME if by == "gap" else 0.0)
    row = row_of(name, contrast, one["difference"], ends, sure_ends)
    gone = by == "test_acc" and contrast.above == 0 and sure_ends[0] > -SAME and sure_ends[1] < SAME
    row |= (
        {"outcome": "open"} if not one["over_samples"] else {"outcome": "against"} if gone else {}
    )
    return row, [said[cell] for cell, count in asked.items() if not count >= cell.queries]


@checked
def flow_claims(
    cells: dict[FlowCell, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Verdicts on claims of Hong, Wu, Gruber and Lee (arXiv 2501.06686): index D1 to D7, D9, D11 to D13.

    Columns and verdicts as in `snn_claims`: "holds", "does not hold", "not resolved", "not run", from `flow_comparisons`.
    What compares models of test accuracies more than 1 point apart is followed by " (at unequal accuracy)"; with a
    `frontier` by " (also at equal accuracy)" where every comparison that decides comes out the same there. What holds as the
    models are, but where a comparison at equal accuracy is against it or finds nothing left, is "not at equal accuracy".
    "(also at equal accuracy, R = 4)": there stochastic models were asked less often than in what decides.
    D7 asks for 10 times, and is "not resolved" at best where the FPR that can be measured is so large that a model at chance
    allows no such ratio. D12: an AUC resolved below 0.5 is no absence of risk but a failed design, and is said to be so.
    Defenses (D8, D15) and accounting (D10, D14) have no place here.
    Caveat: verdicts are about the attacks that were run, on these data, and not a statement on what any attack could find.
    """
    cells = _deciding(cells)
    table, fewer = _compared(cells, frontier, draws, level, seed)
    extra = partial(_remarks, cells=cells, checkpoints=frontier is not None)
    return judge(CLAIMS, cells, table, _who, extra=extra, qualify=partial(_qualified, fewer=fewer))


def _remarks(found: pd.DataFrame, cells, checkpoints: bool) -> Iterator[str]:
    """What a reader must know beside the verdict: what was not matched, ratios out of reach, and an AUC below chance."""
    asked, there = _asked(found), (found["part"] == AT_EQUAL["test_acc"]).sum()
    if checkpoints and there < asked and CLAIMS[found["claim"].iloc[0]].matched == "test_acc":
        yield f"at equal accuracy: {asked - there} of {asked} not compared (no checkpoints, or no level that both pass)"
    for metric in found.loc[found["metric"].str.startswith("ratio"), "metric"].unique():
        most = 1 / float(metric.rpartition("@")[2])
        if most < HUNDREDFOLD:
            yield f"at this FPR a model at chance allows ratios up to {most:.0f} only"
    if (found["claim"] == "D9").any() and (missing := _noise_not_run(cells)):
        yield f"not run at sigma {SIGMA:g}: noise in {', '.join(missing)}"
    if _below_chance(found):
        yield "design check failed: AUC below 0.5, a wrong sign or an effect of the design and no absence of risk"


def _asked(found: pd.DataFrame) -> int:
    """How many comparisons of AUC decide."""
    return int((found["needed"] & (found["metric"] == "auc")).sum())


def _below_chance(found: pd.DataFrame) -> bool:
    coin = found[found["part"] == "above a coin"]
    return bool((coin.loc[coin["metric"] == "auc", "sure_high"] < 0).any())


def _qualified(verdict: str, found: pd.DataFrame, unequal: bool, fewer: dict[str, str]) -> str:
    """The verdict with what comparisons at equal accuracy make of it."""
    if _below_chance(found):
        return "not resolved (design check failed)"
    there = found.loc[found["part"] == AT_EQUAL["test_acc"], "outcome"]
    against = (there == "against").any()
    if verdict == "holds" and against:
        return "not at equal accuracy"
    same = (
        len(there) == _asked(found) and (there == "for").all()
        if verdict == "holds"
        else against and verdict == "does not hold"
    )
    if same and len(there):
        asked = fewer.get(found["claim"].iloc[0])
        return f"{verdict} (also at equal accuracy{f', {asked}' if asked else ''})"
    return at_unequal_accuracy(verdict, found, unequal)
