"""Verdicts on the claims of the spiking-network study, from paired differences between settings."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.contrasts import (
    SAME,
    Claim,
    Contrast,
    compare,
    judge,
    minus,
    steps,
    strongest,
    worst_case,
)
from mia_nb.metrics.published import ALIGNED, Cell, as_cells
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.types import Scores

ATTACKS = ("rmia", "attack_r", "attack_p")  # the study's three, strongest first as it claims
ORIGINALS = {
    "rmia": "rmia_count",
    "attack_p": "attack_p(form='population')",
}  # modified score: what it replaced
TREATMENTS = {False: "without dropout", True: "with dropout"}
FROM = {"own": "", "ann": ", ANN references", ALIGNED: ", aligned ANN references"}


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
    found = [
        cell
        for cell in cells
        if all(getattr(cell, name) == value for name, value in wanted.items())
    ]
    return sorted(found, key=lambda cell: cell.timesteps)


def _settings(cells, **wanted) -> list[Cell]:
    """Distinct settings, attack left blank."""
    return list(dict.fromkeys(cell._replace(attack="") for cell in _own(cells, **wanted)))


def _s1(cells) -> Iterator[Contrast]:
    for cell in cells:
        for strong, weak in pairwise(ATTACKS):
            other = cell._replace(attack=weak)
            if cell.attack == strong and other in cells:
                yield minus(f"{strong} over {weak}", _where(cell), cell, other)


def _s2(cells) -> Iterator[Contrast]:
    for attack in ATTACKS:
        for group in _over_steps(_own(cells, family="snn", attack=attack)):
            for few, more in steps(group):
                yield minus(attack, f"{_where(more)} - T={few.timesteps}", more, few)


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
            a, b = strongest(cells, ann, snn)
            if a:
                yield minus(part, f"{_who(ann)} - {_who(snn)}, {worst_case(a)}", a, b)
            for attack in ATTACKS:
                if ann._replace(attack=attack) in cells and snn._replace(attack=attack) in cells:
                    pair = (ann._replace(attack=attack), snn._replace(attack=attack))
                    yield minus(
                        f"{attack} {part}", f"{_who(ann)} - {_who(snn)}", *pair, needed=False
                    )


def _gains(cells, chosen) -> Iterator[Contrast]:
    """Input dropout minus plain queries, where both were run; the study's strongest attack decides."""
    for cell in chosen:
        plain = cell._replace(input_dropout=False)
        if cell.input_dropout and plain in cells and cell.attack in ATTACKS:
            yield minus(cell.attack, _where(plain), cell, plain, needed=cell.attack == ATTACKS[0])


def _s4(cells) -> Iterator[Contrast]:
    gains = list(_gains(cells, _own(cells, family="snn")))
    yield from gains
    for gain in gains:
        (_, (snn,)), _ = gain.terms
        ann = Cell("ann", input_dropout=True, attack=snn.attack)
        if (
            snn.attack == ATTACKS[0]
            and ann in cells
            and (plain := ann._replace(input_dropout=False)) in cells
        ):
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
            prefix, how = (
                "" if needed else f"{cell.attack} ",
                ", aligned" if cell.references == ALIGNED else "",
            )
            if own in cells:
                yield minus(
                    f"{prefix}weaker than own{how}",
                    f"own - other, {_where(cell)}",
                    own,
                    cell,
                    needed=needed,
                )
            coin = f"{prefix}better than a coin{how}"
            yield Contrast(coin, _where(cell), ((1, (cell,)),), needed=needed, chance=True)


def _s7(cells) -> Iterator[Contrast]:
    for direct in _settings(cells, training="direct"):
        a, b = strongest(cells, direct, direct._replace(training="hybrid"))
        if a:
            what = f"{_where(direct)} - hybrid, {worst_case(a)}"
            yield minus("AUC", what, a, b, margin=SAME)
            yield minus(
                "test accuracy",
                f"{_where(direct)} - hybrid",
                a[:1],
                b[:1],
                metric="test_accuracy",
                needed=False,
                margin=SAME,
            )


def _s8(cells) -> Iterator[Contrast]:
    for group in _over_steps(_settings(cells, family="snn", input_dropout=False)):
        for few, more in steps(group):
            a, b = strongest(cells, more, few)
            if a:
                what = f"{_where(more)} - T={few.timesteps}"
                yield minus("accuracy", what, a[:1], b[:1], metric="test_accuracy")
                yield minus("AUC", f"{what}, {worst_case(a)}", a, b)


def _s9(cells) -> Iterator[Contrast]:
    for cell in cells:
        original = cell._replace(attack=ORIGINALS.get(cell.attack, ""))
        if original in cells:
            yield minus(
                cell.attack, f"{_where(cell)}: modified - original", cell, original, margin=SAME
            )


CLAIMS = {
    "S1": Claim(
        "RMIA is stronger than Attack-R, and Attack-R stronger than Attack-P (in AUC).",
        _s1,
        "two of rmia, attack_r and attack_p in one setting",
        ("rmia over attack_r", "attack_r over attack_p"),
    ),
    "S2": Claim(
        "A spiking network's risk grows with its number of time steps (in AUC).",
        _s2,
        "one attack at two numbers of time steps",
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


@checked
def snn_comparisons(
    cells: dict[Cell, Scores], *, draws: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
    """One row per comparison that a claim of the spiking study (Guan et al. 2025) rests on, as far as it was run.

    Columns: claim, part, compared, metric (auc, test_accuracy, and the TPR at the smallest FPR that all cells can measure),
    needed (decides the claim), value, low, high (at `level`), sure_low, sure_high (all comparisons of a part that decides
    nothing, or of all parts that do, jointly: level 1 - (1 - level) / comparisons), margin, outcome "for" | "against" | "open".
    Intervals are paired (`metrics.interval`): the same samples and pairs of targets in every cell; accuracies vary over pairs
    alone. ValueError when the cells' targets were trained on different masks.
    "for": [low, high] above 0 (or within +-margin); "against": [sure_low, sure_high] below 0 (or outside +-margin). With one
    pair of targets everything is "open": intervals are then over samples alone, and do not show what training changes.
    Caveat: references are shared and samples of an accuracy are fixed, which no interval covers.
    """
    return compare(CLAIMS, as_cells(cells), _where, draws=draws, level=level, seed=seed)


@checked
def snn_claims(
    cells: dict[Cell, Scores], *, draws: int = RESAMPLES, level: float = 0.95, seed: int = 0
) -> pd.DataFrame:
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
    return judge(CLAIMS, as_cells(cells), table, _who, extra=_alignment)


def _alignment(found: pd.DataFrame) -> Iterator[str]:
    """References of another family may be weaker by their scale alone: what remains when both sides are aligned."""
    needed = found[found["needed"]]
    plain, aligned = (
        needed[needed["part"] == f"weaker than own{how}"]["outcome"] for how in ("", ", aligned")
    )
    if len(plain) and not len(aligned):
        yield "without alignment: part of the difference may be one of scale"
    elif len(plain) and (plain == "for").all() and not (aligned == "for").all():
        yield "weaker without alignment only"
