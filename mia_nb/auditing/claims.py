"""Verdicts on what the study of neural SDE classifiers says about noise, accounting and defenses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from mia_nb.accounting import over_epochs, tradeoff
from mia_nb.checks import checked
from mia_nb.metrics.contrasts import (
    COLUMNS,
    SAME,
    TPR,
    Claim,
    Contrast,
    compare,
    judge,
    minus,
    row_of,
    strongest,
    worst_case,
)
from mia_nb.metrics.curve import clopper_pearson, counts
from mia_nb.metrics.defense_published import DefenseCell, defense_checked, tied_floor
from mia_nb.metrics.flow_published import NEAR
from mia_nb.metrics.published import fewest_non_members, measurable
from mia_nb.metrics.uncertainty import FPR, RESAMPLES, per_target_metrics, scored
from mia_nb.types import Scores

SIGMA = 2.0  # the study's SDENet
CURVE = 1.0  # epsilon of the curve that Figure 5 draws
TWICE = 2.0  # TPRs up to this factor apart count as the same protection
CONCLUSION = "not established"
COUNTEREXAMPLES = (
    "with drift 0 the theorem allows every sigma above 0, as h(0) is missing in its proof",
    "with one record per batch the gradients of stem and classifier bias reveal x and y, whatever sigma is",
    "in the study hidden states are not clipped and the drift's Lipschitz constant is not bounded",
    "layers before the block are trained on the same records",
)
FIGURE4 = {
    "grows": ("epsilon grows with epochs, ever more slowly", "increasing, concave"),
    "uniform": ("GDP is above RDP and PRV, at every epoch", "GDP > RDP > PRV"),
    "poisson": (
        "the same order, with GDP for the Poisson batches that RDP and PRV assume",
        "GDP > RDP > PRV",
    ),
    "widens": ("the distance of GDP to the others widens with epochs", "widening"),
    "delta": ("as delta increases, so does epsilon", "increasing"),
    "target": ("the target is epsilon 8", "8"),
    "utility": ("test accuracy of 80 % at epsilon 2 (GDP)", "80 %"),
    "spread": ("at epsilon 2 test accuracy ranges from 65 to 82 % over models", "65 to 82 %"),
}  # what the text beside Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686) states, and prints
UTILITY_AT, PRINTED_UTILITY, PRINTED_SPREAD, HALF_A_POINT = 2.0, 0.80, (0.65, 0.82), 0.005


def _who(cell: DefenseCell) -> str:
    return cell.label + (f", {cell.queries} queries" if cell.queries > 1 else "")


def _settings(cells, **wanted) -> list[DefenseCell]:
    """Distinct settings with these fields, attack left blank, fewest queries first."""
    return sorted(
        {
            c._replace(attack="")
            for c in cells
            if all(getattr(c, name) == value for name, value in wanted.items())
        }
    )


def _sdenets(cells, noise: bool = True) -> list[DefenseCell]:
    """Undefended SDENets of sigma 2, or networks of sigma 0."""
    plain = _settings(cells, model="sdenet", defense="", output="")
    if noise:
        return [cell for cell in plain if abs(cell.sigma - SIGMA) < NEAR]
    return [cell for cell in plain if not cell.sigma] or _settings(
        cells, model="odenet", defense="", output=""
    )


def _most_asked(settings: list[DefenseCell]) -> list[DefenseCell]:
    """Of settings that differ in queries alone the most: the strongest attacker that was run."""
    return list({cell._replace(queries=1): cell for cell in settings}.values())


def _d8(cells) -> Iterator[Contrast]:
    for sde in _most_asked(_sdenets(cells)):
        for dp in _settings(cells, defense="dp_sgd", output="", sigma=0.0):
            side_dp, side_sde = strongest(cells, dp, sde)
            if not side_dp:
                continue
            attacks = worst_case(side_dp, side_sde)
            yield minus(
                "AUC", f"{_who(dp)} - {_who(sde)}, {attacks}", side_dp, side_sde, above=-SAME
            )
            yield minus(
                "at most twice",
                f"{_who(dp)} / {_who(sde)}, {attacks}",
                side_dp,
                side_sde,
                metric=TPR,
                ratio=True,
                above=1 / TWICE,
            )
            yield minus(
                "accuracy",
                f"{_who(sde)} - {_who(dp)}",
                side_sde[:1],
                side_dp[:1],
                metric="test_accuracy",
            )


def _d10(cells) -> Iterator[Contrast]:
    """A contrast per attacked network, to be looked at target by target (`_below`)."""
    for noise, words in ((True, ""), (False, "without noise, ")):
        settings = _sdenets(cells, noise)
        for cell in (cell for cell in cells if cell._replace(attack="") in settings):
            yield Contrast(
                f"{words}{cell.attack}", _who(cell), ((1, (cell,)),), metric=TPR, needed=noise
            )


def _d15(cells) -> Iterator[Contrast]:
    for setting in _settings(cells, output="memguard"):
        (side,) = strongest(cells, setting)
        yield Contrast(
            "leak", f"{_who(setting)}, {worst_case(side)}", ((1, side),), margin=SAME, chance=True
        )
        for cell in side if len(side) > 1 else ():
            yield Contrast(
                cell.attack, _who(setting), ((1, (cell,)),), margin=SAME, chance=True, needed=False
            )


CLAIMS = {
    "D8": Claim(
        "A neural SDE (SDENet of sigma 2) protects as DP-SGD (the study's: epsilon 8, delta 1e-5) does, at a higher accuracy "
        f"(AUC of the strongest attack no more than {SAME} above, TPR no more than {TWICE:g} times).",
        _d8,
        "one attack on an SDENet of sigma 2 and on a network trained with DP-SGD, on the same masks",
        ("AUC", "at most twice", "accuracy"),
    ),
    "D10": Claim(
        f"Attacks on the SDENet (sigma 2) stay below the trade-off curve of epsilon {CURVE:g} (at the same delta).",
        _d10,
        "one attack on an SDENet of sigma 2, with 100 non-members or more",
    ),
    "D15": Claim(
        "Behind MemGuard (labels alone) nothing is left to find, as its TPR of 0 at an FPR of 0.1 % suggests "
        f"(AUC of the strongest attack within {SAME} of 0.5).",
        _d15,
        "one attack on models asked with output 'memguard'",
    ),
}
ESTABLISHED = (
    "As the study states, training a neural SDE satisfies (epsilon, delta)-differential privacy with the nominal epsilon "
    "(paper's accounting)."
)


@checked
def privacy_comparisons(
    cells: dict[DefenseCell, Scores],
    *,
    delta: float = 1e-5,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per comparison that D8, D10 and D15 rest on, as far as it was run; columns as in `metrics.snn_comparisons`.

    D8 and D15: paired intervals of `flow_comparisons`. D10: a row per attacked SDENet and measurable FPR (10 allowed false
    positives), value = curve at the realised FPR - TPR of the target that has least room below the curve, where

        low = curve(fpr_lo) - tpr_hi,  high = curve(fpr_hi) - tpr_lo          curve: `tradeoff`, epsilon 1 and `delta`

    with Clopper-Pearson ends of that target alone; "for" where low > 0 at `level` for every target, "against" where high < 0
    for one of them, after Bonferroni over all (target, FPR, attack) of networks with noise (those without among themselves).
    The threshold is set by the non-members alone, so that both ends are exact. With one target alone everything is "open".
    Cells with a `variant` are left out. Raises ValueError for cells that cannot be or were trained on different masks.
    Caveat: records of one training are no independent trainings (population-level): no verdict on a mechanism.
    """
    return _compared(_deciding(cells), delta, draws, level, seed)


def _deciding(cells: dict) -> dict[DefenseCell, Scores]:
    return {cell: scores for cell, scores in defense_checked(cells).items() if not cell.variant}


def _compared(cells, delta: float, draws: int, level: float, seed: int) -> pd.DataFrame:
    paired = compare(
        {"D8": CLAIMS["D8"], "D15": CLAIMS["D15"]}, cells, _who, draws=draws, level=level, seed=seed
    )
    ties = (paired["claim"] == "D15") & paired["metric"].str.startswith(
        "tpr@"
    )  # said in words: 0 by ties is no difference
    looked = pd.DataFrame(_below(cells, delta, level), columns=COLUMNS).astype({"needed": bool})
    frames = [frame for frame in (paired[~ties], looked) if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else looked


def _rates(scores: Scores) -> list[float]:
    return [x for x in FPR if measurable(f"tpr@{x:g}", fewest_non_members(scores))]


def _looked_at(scores: Scores) -> list[float]:
    """Rates at which a ROC may lie above a curve: where ties leave only an FPR of 0, the TPR says nothing."""
    return [x for x in _rates(scores) if tied_floor(scores) <= x]


def _below(cells, delta: float, level: float) -> list[dict]:
    """Rows of D10."""
    asked = [(contrast, cells[contrast.terms[0][1][0]]) for contrast in _d10(cells)]
    rows = []
    for needed in (True, False):
        mine = [(contrast, scores) for contrast, scores in asked if contrast.needed == needed]
        looks = max(sum(len(_looked_at(scores)) * len(scores.value) for _, scores in mine), 1)
        levels = (level, 1 - (1 - level) / looks)
        for contrast, scores in mine:
            where = _looked_at(scores)
            rows += [
                _least_room(contrast._replace(metric=f"tpr@{x:g}"), scores, x, delta, levels)
                for x in where
            ]
    return rows


def _least_room(
    contrast: Contrast, scores: Scores, x: float, delta: float, levels: tuple[float, float]
) -> dict:
    """One row: the target with the least room below the curve, and what all of them say."""
    curve = partial(tradeoff, epsilon=CURVE, delta=delta)
    rooms = np.array(
        [room_below(*scored(scores, row), x, curve, levels) for row in range(len(scores.value))]
    )
    row, least = int(rooms[:, 0].argmin()), f"{contrast.compared}, {contrast.terms[0][1][0].attack}"
    if len(rooms) > 1:
        least += f", least of {len(rooms)} targets ({scores.targets[row]})"
    value, low, high, sure_low, sure_high = rooms[row]
    record = row_of(
        "D10", contrast._replace(compared=least), value, (low, high), (sure_low, sure_high)
    )
    alone = len(np.unique(scores.pair)) < 2
    above, below = (rooms[:, 4] < 0).any(), (rooms[:, 1] > 0).all()
    return record | {
        "outcome": "open" if alone else "against" if above else "for" if below else "open"
    }


def room_below(score, member, x: float, curve: Callable, levels) -> list[float]:
    """[curve - TPR, then its low and high end per level] of one target at the largest FPR that is at most x.

    curve(fpr) -> the largest TPR. Ends as in `privacy_comparisons`: above the curve is what has a high end below 0.
    """
    tp, fp, _ = counts(score, member)
    last = (
        np.searchsorted(fp, np.floor(x * fp[-1] + 1e-9), side="right") - 1
    )  # where non-members alone put the threshold
    room = [float(curve(fp[last] / fp[-1])) - tp[last] / tp[-1]]
    for level in levels:
        fpr, tpr = (clopper_pearson(hits[last], hits[-1], confidence=level) for hits in (fp, tp))
        room += [float(curve(fpr[0])) - float(tpr[1]), float(curve(fpr[1])) - float(tpr[0])]
    return room


@checked
def privacy_claims(
    cells: dict[DefenseCell, Scores],
    *,
    ladders: pd.DataFrame | dict[str, pd.DataFrame] | None = None,
    delta: float = 1e-5,
    draws: int = RESAMPLES,
    level: float = 0.95,
    seed: int = 0,
) -> pd.DataFrame:
    """Verdicts on claims of Hong, Wu, Gruber and Lee (arXiv 2501.06686): index D8, D10, D14, D15.

    Columns as in `metrics.flow_claims`: claim, verdict, evidence, compared, accuracy_apart. Verdicts "holds", "does not hold",
    "not resolved", "not run" from `privacy_comparisons`; pass DP-SGD trained for epsilon 8 (delta 1e-5) alone. D10 holds only
    "(at FPR 0.1 and above)" where smaller ones are not measurable. D15: an AUC resolved below 0.5 is a failed design. D14 never
    holds: it is "not established", or does not hold where the ladder says that its audit refutes the nominal value.
    ladders: `auditing.ladder` of a network, or {label: ladder} (`DefenseCell.label`); those whose row 4 is DP-SGD's go into the
    evidence of D8, the others with a nominal value (row 1) into that of D14.
    Caveat: verdicts are about the attacks that were run; no attack found that exceeds a curve establishes none.
    """
    cells = _deciding(cells)
    ladders = {"this network": ladders} if isinstance(ladders, pd.DataFrame) else ladders or {}
    for name, ladder in ladders.items():
        if lacks := [
            column
            for column in ("row", "shown", "epsilon", "delta", "method", "verdict")
            if column not in ladder
        ]:
            raise ValueError(
                f"the ladder of {name} lacks {', '.join(lacks)}: pass auditing.ladder(...)"
            )
    table = _compared(cells, delta, draws, level, seed)
    extra = partial(_remarks, cells=cells, ladders=ladders, delta=delta, level=level)
    found = judge(CLAIMS, cells, table, _who, extra=extra, qualify=partial(_qualified, cells=cells))
    found.loc["D14"] = _established(ladders)
    return found.loc[["D8", "D10", "D14", "D15"]]


def _row_of(ladder: pd.DataFrame, row: int) -> pd.Series:
    return ladder[ladder["row"] == row].iloc[0]


def _by_dp_sgd(ladder: pd.DataFrame) -> bool:
    return str(_row_of(ladder, 4)["method"]).startswith("DP-SGD")


def _remarks(found: pd.DataFrame, cells, ladders, delta: float, level: float) -> Iterator[str]:
    """What a reader must know beside the verdict."""
    claim = found["claim"].iloc[0] if len(found) else ""
    if claim == "D8":
        rows = {name: _row_of(ladder, 4) for name, ladder in ladders.items() if _by_dp_sgd(ladder)}
        for name, row in rows.items():
            yield f"DP-SGD accounted: {name} epsilon {row['shown']} at delta {row['delta']:g}, {row['method']}"
        if not rows:
            yield "what DP-SGD was accounted at is not given (ladders)"
        if not any("trainings" in row["method"] for row in rows.values()):
            yield "an untuned DP-SGD is less accurate than it could be"
    if claim == "D10":
        rates = sorted({float(metric.removeprefix("tpr@")) for metric in found["metric"]})
        asked = [cells[contrast.terms[0][1][0]] for contrast in _d10(cells) if contrast.needed]
        looks = sum(len(_looked_at(scores)) * len(scores.value) for scores in asked)
        yield f"curve minus TPR at delta {delta:g}, one target at a time (Clopper-Pearson)"
        word = (
            "counts"
            if (found.loc[found["needed"], "outcome"] == "against").any()
            else "would count"
        )
        yield f"a curve {word} as exceeded only at {100 * level:g} % over {looks} looks together"
        if rates[0] > FPR[0]:
            yield f"FPR below {rates[0]:g} not measurable, as an FPR of {FPR[0]:g} needs 10,000 non-members"
    if claim == "D15":
        yield from _ties(cells)
        if _below_chance(found):
            yield "design check failed: AUC below 0.5, a wrong sign or an effect of the design and no absence of risk"


def _ties(cells) -> Iterator[str]:
    """Which attacks have a TPR of 0 behind MemGuard by ties, and which find members."""
    asked = {cell: cells[cell] for cell in cells if cell.output == "memguard"}
    rates = [x for x in FPR if all(x in _rates(scores) for scores in asked.values())]
    if not rates:
        return
    x, words = rates[0], []
    for cell, scores in asked.items():
        tpr, floor = per_target_metrics(scores, (x,))[:, 2].mean(), tied_floor(scores)
        tied = tpr == 0 and floor > x
        why = f" by ties (no FPR below {floor:.2f}): the printed 0, and no measure" if tied else ""
        words.append(f"{cell.attack} {tpr:.3f}{why}")
    yield f"TPR at {100 * x:g} % FPR: {', '.join(words)}"


def _below_chance(found: pd.DataFrame) -> bool:
    return bool((found.loc[found["part"] == "leak", "sure_high"] < -SAME).any())


def _qualified(verdict: str, found: pd.DataFrame, unequal: bool, cells) -> str:
    claim = found["claim"].iloc[0] if len(found) else ""
    if claim == "D15" and _below_chance(found):
        return "not resolved (design check failed)"
    if claim == "D10" and verdict == "holds":
        least = min(
            float(metric.removeprefix("tpr@")) for metric in found.loc[found["needed"], "metric"]
        )
        return verdict if least <= FPR[0] else f"holds (at FPR {least:g} and above)"
    return verdict


def _established(ladders: dict[str, pd.DataFrame]) -> dict:
    """The row of D14: what is proved, what is claimed, and whether an audit exceeds it."""
    evidence, refuted = [], False
    claimed = {
        name: one for name, one in ladders.items() if np.isfinite(_row_of(one, 1)["epsilon"])
    }
    of_interest = {name: one for name, one in claimed.items() if not _by_dp_sgd(one)}
    for name, ladder in of_interest.items():
        nominal, proved, audited = (_row_of(ladder, row) for row in (1, 4, 5))
        shown = f"{nominal['label']} {nominal['shown']}, training guarantee {proved['shown']}, audited {audited['shown']}"
        by = (
            f" ({audited['method'].replace('; ', ', ')})" if audited["method"] else ""
        )  # evidence is split at "; "
        evidence.append(f"{name} at delta {nominal['delta']:g}: {shown}{by}")
        evidence += [f"nominal value of {name}: {nominal['verdict']}"] if nominal["verdict"] else []
        refuted |= str(nominal["verdict"]).startswith("refuted at")
    if len(of_interest) > 1:
        evidence.append("each network's audit at its own confidence")
    if not of_interest:
        evidence.append(
            "training guarantee none (infinite); nominal value and audit not given (ladders)"
        )
    evidence = "; ".join([*evidence, *COUNTEREXAMPLES])
    verdict = "does not hold" if refuted else CONCLUSION
    return {
        "claim": ESTABLISHED,
        "verdict": verdict,
        "evidence": evidence,
        "compared": "",
        "accuracy_apart": np.nan,
    }


@checked
def figure4_against_paper(
    *,
    sigma: float = SIGMA,
    samples: int = 25_000,
    batch: int = 512,
    epochs: int = 300,
    delta: float = 1e-5,
    deltas=(1e-2, 1e-3, 1e-4, 1e-5, 1e-6),
    accuracy: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """What the text beside Figure 4 of Hong, Wu, Gruber and Lee (arXiv 2501.06686) states, computed again: a row per statement.

    Columns: statement, printed, ours, agrees (True, False, <NA> where not run), note. All epsilons are nominal (paper's
    accounting: sigma as DP-SGD's noise multiplier, for one record added or removed). accuracy: columns epoch, test_acc and
    maybe model, for the two statements about test accuracy, which hold `batch` and `samples` to be those of that training.
    Batch size, samples and the sampling of GDP are not printed; with the defaults and uniform batches GDP ends near the target.
    Takes seconds, for PRV. Raises ValueError as `accounting.over_epochs` does and for an accuracy table without its columns.
    """
    noise = {"noise_multiplier": sigma, "samples": samples, "batch": batch}
    few = sorted({max(epochs // 30, 1), max(epochs // 3, 1), epochs})
    spent = {form: _wide(over_epochs(**noise, epochs=few, delta=delta, sampling=form, accountants=("gdp",)), "gdp")
             for form in ("uniform", "poisson")}  # fmt: skip
    others = over_epochs(**noise, epochs=few, delta=delta, accountants=("prv", "rdp"))
    rdp, prv = (_wide(others, name) for name in ("rdp", "prv"))
    last = {
        "GDP uniform": spent["uniform"][-1],
        "GDP poisson": spent["poisson"][-1],
        "RDP": rdp[-1],
        "PRV": prv[-1],
    }
    found = {"grows": _grows(few, [*spent.values(), rdp, prv])}
    note = f"after {epochs} epochs, delta {delta:g}; compared after {', '.join(map(str, few))}"
    for form, gdp in spent.items():
        names = sorted([f"GDP {form}", "RDP", "PRV"], key=lambda name: -last[name])
        found[form] = (
            " > ".join(f"{name} {last[name]:.2f}" for name in names),
            bool(((gdp > rdp) & (rdp > prv)).all()),
            note,
        )
    apart = spent["uniform"] - prv
    found["widens"] = (
        _arrow(apart),
        bool((np.diff(apart) > 0).all()),
        f"GDP uniform - PRV after {', '.join(map(str, few))} epochs",
    )
    over = over_epochs(
        **noise, epochs=epochs, delta=sorted(deltas), sampling="uniform", accountants=("gdp",)
    )["epsilon"]
    found["delta"] = (
        _arrow(over),
        bool((np.diff(over) > 0).all()),
        f"delta from {min(deltas):g} to {max(deltas):g}, GDP uniform",
    )
    end = last["GDP uniform"]
    found["target"] = (
        f"{end:.2f}",
        bool(end <= 8),
        f"after {epochs} epochs, batch {batch} of {samples:,}: neither is printed",
    )
    curve = over_epochs(
        **noise, epochs=range(1, epochs + 1), delta=delta, sampling="uniform", accountants=("gdp",)
    )
    found |= _at_two(curve, accuracy)
    rows = [(*FIGURE4[name], *found[name]) for name in FIGURE4]
    table = pd.DataFrame(rows, columns=["statement", "printed", "ours", "agrees", "note"])
    return table.astype({"agrees": "boolean"})


def _wide(table: pd.DataFrame, accountant: str) -> np.ndarray:
    return table.loc[table["accountant"] == accountant, "epsilon"].to_numpy(float)


def _arrow(values) -> str:
    return " -> ".join(f"{value:.2f}" for value in values)


def _grows(epochs: list[int], curves: list[np.ndarray]) -> tuple:
    slopes = [np.diff([0, *curve]) / np.diff([0, *epochs]) for curve in curves]
    agrees = all((slope > 0).all() and (np.diff(slope) < 0).all() for slope in slopes)
    return (
        _arrow(curves[0]),
        bool(agrees),
        f"GDP uniform after {', '.join(map(str, epochs))} epochs; the others alike",
    )


def _at_two(curve: pd.DataFrame, accuracy: pd.DataFrame | None) -> dict:
    """The two statements about accuracy at epsilon 2, and the epoch that this is."""
    spent = curve[curve["epsilon"] <= UTILITY_AT]
    if spent.empty:
        return dict.fromkeys(
            ("utility", "spread"), ("not run", pd.NA, "epsilon 2 is exceeded in the first epoch")
        )
    if curve["epsilon"].max() < UTILITY_AT:
        end = f"GDP uniform ends at epsilon {curve['epsilon'].max():.3g}, below 2"
        return dict.fromkeys(("utility", "spread"), ("not run", pd.NA, end))
    epoch = int(spent["epoch"].max())
    where = f"GDP uniform reaches epsilon 2 after epoch {epoch}: accuracy along epochs on a relabelled axis"
    if accuracy is None:
        return dict.fromkeys(("utility", "spread"), ("not run", pd.NA, where))
    if lacks := [name for name in ("epoch", "test_acc") if name not in accuracy]:
        raise ValueError(
            f"accuracy lacks {', '.join(lacks)}: wanted columns epoch and test_acc, and model for several"
        )
    seen = accuracy[accuracy["epoch"] <= epoch]
    if seen.empty:
        return dict.fromkeys(
            ("utility", "spread"), ("not run", pd.NA, f"{where}; no accuracy up to there")
        )
    at = seen.loc[seen["epoch"] == seen["epoch"].max(), "test_acc"]
    mean, low, high = float(at.mean()), float(at.min()), float(at.max())
    note = f"{where}; accuracy of epoch {int(seen['epoch'].max())}, {len(at)} model{'s' * (len(at) != 1)}"
    inside = low >= PRINTED_SPREAD[0] - HALF_A_POINT and high <= PRINTED_SPREAD[1] + HALF_A_POINT
    spread = (
        (f"{low:.1%} to {high:.1%}", bool(inside), note)
        if len(at) > 1
        else ("not run", pd.NA, f"{note}: one shows no range")
    )
    return {
        "utility": (f"{mean:.1%}", bool(mean >= PRINTED_UTILITY - HALF_A_POINT), note),
        "spread": spread,
    }
