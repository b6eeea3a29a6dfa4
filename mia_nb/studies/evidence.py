"""The evidence of a verdict in words.

The evidence of every claim has its numbers and what they do not show. In a study's file `remarks`
names functions that add phrases; `decided_by`, for a claim that compares no scores, names a
function that gives the entries of the claim's row.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.attacks import in_words
from mia_nb.metrics.curve import rate_of
from mia_nb.metrics.targets import FPR, measurable_rates, per_target_metrics, tied_floor
from mia_nb.studies.below_curve import number_of_tests
from mia_nb.studies.contrasts import one_pair
from mia_nb.studies.equal_accuracy import AT_EQUAL
from mia_nb.studies.settings import Setting
from mia_nb.studies.study import Claim, Contrast
from mia_nb.types import Scores

HUNDREDFOLD = 100.0
# rows of `auditing.ladder` by their number
NOMINAL = 1
PROVED = 4
AUDITED = 5
ALIKE = 0.9  # share of the ceiling from which a rank correlation counts as that of one ranking
ATTACK_KEYS = r"\b(?:rmia|lira|nig|attack)\w*"  # which the evidence writes in words
RANKS = (
    "{first} and {second}: {correlation:.3f} of at most {ceiling:.3f}, ratio {ratio:.2f}"
    " [{low:.2f}, {high:.2f}], {samples:,} samples, {pairs} pairs"
)
COUNTEREXAMPLES = (
    "with drift 0 the theorem allows every sigma above 0, as h(0) is missing in its proof",
    (
        "with one record per batch the gradients of stem and classifier bias reveal x and y,"
        " whatever sigma is"
    ),
    "in the study hidden states are not clipped and the drift's Lipschitz constant is not bounded",
    "layers before the block are trained on the same records",
)


class Case(NamedTuple):
    """What a verdict on one claim is based on.

    Parameters:
        claim: with the comparisons that the verdict asks for
        settings: those that decide, with their scores
        contrasts: of the claim
        rows: of `compare`, for this claim
        frontier, delta, level, ladders, ranks: as given to `claims`
    """

    claim: Claim
    settings: dict[Setting, Scores]
    contrasts: list[Contrast]
    rows: pd.DataFrame
    frontier: pd.DataFrame | None
    delta: float
    level: float
    ladders: dict[str, pd.DataFrame]
    ranks: pd.DataFrame | None

    @property
    def needed(self) -> pd.DataFrame:
        """The rows that decide."""
        return self.rows[self.rows["needed"]]

    @property
    def missing(self) -> list[str]:
        """The parts that the claim needs and that were not run."""
        run = set(self.needed["part"])
        return [part for part in self.claim.parts if part not in run]

    @property
    def number_of_deciding_aucs(self) -> int:
        """How many comparisons of AUC decide."""
        return int((self.needed["metric"] == "auc").sum())


def evidence(case: Case, check_failed: bool) -> str:
    """All phrases on a claim's verdict, joined by "; "."""
    if len(case.rows):
        text = "; ".join(_phrases(case, check_failed))
    else:
        text = f"not run: needs {case.claim.needs}"
    return re.sub(ATTACK_KEYS, lambda key: in_words(key[0]), text)


def _phrases(case: Case, check_failed: bool) -> Iterator[str]:
    """The numbers of each part and metric, and what they do not show."""
    for (part, metric), group in case.rows.groupby(["part", "metric"], sort=False):
        yield _outcomes(part, metric, group)
        if group["relative"].notna().any():
            yield _largest_share(part, group)
    for part in case.missing:
        yield f"{part}: not run"
    for remark in case.claim.remarks:
        yield from REMARKS[remark](case)
    if check_failed:
        yield (
            "design check failed: AUC below 0.5, a wrong sign or an effect of the design and no"
            " absence of risk"
        )
    yield from _caveats(case)


def _outcomes(part: str, metric: str, group: pd.DataFrame) -> str:
    """How many comparisons of a part and metric are for and against the claim, and the weakest of
    them (not for a TPR that decides nothing).
    """
    title = part
    if metric.startswith(part):
        title = metric
    elif "tpr@" in metric:
        title = f"{part} {metric}"
    comparisons = len(group)
    supporting = (group["outcome"] == "for").sum()
    opposing = (group["outcome"] == "against").sum()
    counts = f"{supporting} of {comparisons} for, {opposing} of {comparisons} against"
    weakest = _weakest(group)
    decides_nothing = metric.startswith("tpr@") and not weakest["needed"]
    if decides_nothing:
        return f"{title}: {counts}"
    form = ".1f" if metric.startswith("ratio of tpr") else "+.3f"
    value, low, high = (format(number, form) for number in weakest[["value", "low", "high"]])
    numbers = f"{weakest['compared']} {value} [{low}, {high}]"
    if comparisons == 1:
        return f"{title}: {numbers}"
    return f"{title}: {counts}, least {numbers}"


def _largest_share(part: str, group: pd.DataFrame) -> str:
    """The largest difference of a part, relative to what the other side leaks."""
    largest = group.loc[group["relative"].abs().idxmax()]
    share, low, high = largest[["relative", "relative_low", "relative_high"]]
    return (
        f"{part}, as a share of the other side's AUC - 1/2: at most {share:+.0%}"
        f" [{low:+.0%}, {high:+.0%}] ({largest['compared']})"
    )


def _weakest(group: pd.DataFrame) -> pd.Series:
    """The row that supports the claim least.

    It is chosen among the rows that are not "for" the claim, or among all if every row is. It has
    the smallest value; for claims of a margin, the largest in size. NaN comes last.
    """
    value = group["value"].to_numpy()
    support = np.where(group["margin"] == 0, value, -abs(value))
    is_for = group["outcome"] == "for"
    rows_by_support = np.lexsort((support, is_for))  # by `is_for`, then by support
    return group.iloc[rows_by_support[0]]


def _accuracies(
    compared: list[Contrast], settings: dict[Setting, Scores]
) -> dict[str, tuple[float, float]]:
    """{name of the models: (mean train accuracy, mean test accuracy)} of all models compared."""
    every_setting = set().union(*(contrast.settings for contrast in compared))
    accuracies: dict[str, tuple[float, float]] = {}

    def order(setting: Setting) -> tuple:
        """The plain recipe and images as they are first: of a model as it is used."""
        is_augmented = settings[setting].info.get("draws") == "augment"
        return setting.recipe, is_augmented, setting

    for setting in sorted(every_setting, key=order):
        accuracies.setdefault(setting.models, tuple(settings[setting].accuracy.mean(0)))
    return accuracies


def accuracy_apart(compared: list[Contrast], settings: dict[Setting, Scores]) -> float:
    """The largest difference of mean test accuracy between models of one contrast; NaN where no
    contrast compares different models.
    """
    accuracies = _accuracies(compared, settings)
    differences = []
    for contrast in compared:
        models = {setting.models for setting in contrast.settings}
        if len(models) > 1:
            test = [accuracies[name][1] for name in models]
            differences.append(float(max(test) - min(test)))
    return max(differences, default=np.nan)


def _caveats(case: Case) -> Iterator[str]:
    """Phrases on the train and test accuracy of all models compared, on the largest difference of
    accuracy, and on having one pair of targets only.
    """
    accuracies = []
    for name, (train, test) in _accuracies(case.contrasts, case.settings).items():
        accuracies.append(f"{name} {train:.3f} / {test:.3f}")
    yield f"train / test accuracy {', '.join(accuracies)}"
    difference = accuracy_apart(case.contrasts, case.settings)
    if difference > 0:
        yield f"compared at test accuracies up to {difference:.3f} apart"
    if case.contrasts and one_pair(case.settings[case.contrasts[0].first]):
        yield "one pair of targets does not show training randomness: nothing is decided"


# what `remarks` names


def _alignment(case: Case) -> Iterator[str]:
    """Whether references of another family are weaker only because of their scale, which alignment
    of both sides removes.
    """
    needed = case.needed
    plain = needed.loc[needed["part"] == "weaker than own", "outcome"]
    aligned = needed.loc[needed["part"] == "weaker than own, aligned", "outcome"]
    if not len(plain):
        return
    if not len(aligned):
        yield "without alignment: part of the difference may be one of scale"
    elif (plain == "for").all() and not (aligned == "for").all():
        yield "weaker without alignment only"


def _not_matched(case: Case) -> Iterator[str]:
    """How many of the deciding comparisons were not repeated at equal accuracy."""
    deciding = case.number_of_deciding_aucs
    repeated = (case.rows["part"] == AT_EQUAL["test_acc"]).sum()
    if case.frontier is not None and repeated < deciding:
        yield (
            f"at equal accuracy: {deciding - repeated} of {deciding} not compared (no checkpoints,"
            " or no level that both pass)"
        )


def _ratio_out_of_reach(case: Case) -> Iterator[str]:
    """Ratios of a TPR that cannot be hundredfold, as no TPR exceeds 1."""
    for metric in case.rows["metric"].unique():
        if metric.startswith("ratio of tpr"):
            most = 1 / rate_of(metric)
            if most < HUNDREDFOLD:
                yield f"at this FPR a model at chance allows ratios up to {most:.0f} only"


def _noise_not_run(case: Case) -> Iterator[str]:
    """The places of noise in which no network of sigma 2 was run."""
    parts = set(case.rows["part"])
    places = ("both", "training alone", "queries alone")
    missing = [place for place in places if f"gain of noise in {place}" not in parts]
    if missing:
        yield f"not run at sigma 2: noise in {', '.join(missing)}"


def _row_of_ladder(ladder: pd.DataFrame, row: int) -> pd.Series:
    """A row of `auditing.ladder` by its number, such as `NOMINAL`."""
    return ladder[ladder["row"] == row].iloc[0]


def _by_dp_sgd(ladder: pd.DataFrame) -> bool:
    """Whether the guarantee of a ladder is DP-SGD's."""
    return str(_row_of_ladder(ladder, PROVED)["method"]).startswith("DP-SGD")


def _accounted(case: Case) -> Iterator[str]:
    """The accounted epsilon of DP-SGD, and whether that covers its tuning."""
    methods = []
    for name, ladder in case.ladders.items():
        if _by_dp_sgd(ladder):
            row = _row_of_ladder(ladder, PROVED)
            methods.append(row["method"])
            yield (
                f"DP-SGD accounted: {name} epsilon {row['shown']} at delta {row['delta']:g},"
                f" {row['method']}"
            )
    if not methods:
        yield "what DP-SGD was accounted at is not given (ladders)"
    if not any("trainings" in method for method in methods):
        yield "an untuned DP-SGD is less accurate than it could be"


def _tests_together(case: Case) -> Iterator[str]:
    """How attacks were compared with the curve of an epsilon, and from which FPR on."""
    deciding = [contrast for contrast in case.contrasts if contrast.needed]
    tests = number_of_tests(deciding, case.settings)
    exceeded = (case.needed["outcome"] == "against").any()
    yield f"curve minus TPR at delta {case.delta:g}, one target at a time (Clopper-Pearson)"
    yield (
        f"a curve {'counts' if exceeded else 'would count'} as exceeded only at"
        f" {100 * case.level:g} % over {tests} looks together"
    )
    least = min(map(rate_of, case.rows["metric"]))
    if least > FPR[0]:
        yield (
            f"FPR below {least:g} not measurable, as an FPR of {FPR[0]:g} needs 10,000 non-members"
        )


def _ties(case: Case) -> Iterator[str]:
    """Which attacks have a TPR of 0 behind MemGuard by ties, and which find members."""
    behind = [setting for setting in case.settings if setting.output == "memguard"]
    rates = set(FPR)
    for setting in behind:
        rates &= set(measurable_rates(case.settings[setting]))
    if not rates:
        return
    x = min(rates)
    attacks = []
    for setting in behind:
        scores = case.settings[setting]
        tpr = per_target_metrics(scores, (x,))[:, -1].mean()
        floor = tied_floor(scores)
        text = f"{setting.attack} {tpr:.3f}"
        if tpr == 0 and floor > x:
            text += f" by ties (no FPR below {floor:.2f}): the printed 0, and no measure"
        attacks.append(text)
    yield f"TPR at {100 * x:g} % FPR: {', '.join(attacks)}"


# what `decided_by` names


def _same_samples(case: Case) -> dict[str, str]:
    """Whether recipes expose the same samples, from `metrics.agreement`."""
    ranks = case.ranks
    if ranks is None or not len(ranks):
        return {}
    verdict = "not resolved"
    if (ranks["high"] < ALIKE).any():
        verdict = "does not hold"
    elif (ranks["low"] > ALIKE).all():
        verdict = "holds"
    phrases = [RANKS.format(**row) for row in ranks.to_dict("records")]
    return {"verdict": verdict, "evidence": "; ".join(phrases)}


def _established(case: Case) -> dict[str, str]:
    """What is proved, what is claimed, and whether an audit exceeds it."""
    phrases = []
    verdict = "not established"
    for name, ladder in case.ladders.items():
        nominal = _row_of_ladder(ladder, NOMINAL)
        if not np.isfinite(nominal["epsilon"]) or _by_dp_sgd(ladder):
            continue
        proved = _row_of_ladder(ladder, PROVED)
        audited = _row_of_ladder(ladder, AUDITED)
        method = ""
        if audited["method"]:
            one_phrase = audited["method"].replace("; ", ", ")  # evidence is split at "; "
            method = f" ({one_phrase})"
        phrases.append(
            f"{name} at delta {nominal['delta']:g}: {nominal['label']} {nominal['shown']}, training"
            f" guarantee {proved['shown']}, audited {audited['shown']}{method}"
        )
        if nominal["verdict"]:
            phrases.append(f"nominal value of {name}: {nominal['verdict']}")
        if str(nominal["verdict"]).startswith("refuted at"):
            verdict = "does not hold"
    if not phrases:
        phrases.append(
            "training guarantee none (infinite); nominal value and audit not given (ladders)"
        )
    return {"verdict": verdict, "evidence": "; ".join([*phrases, *COUNTEREXAMPLES])}


REMARKS = {
    "alignment": _alignment,
    "not_matched": _not_matched,
    "ratio_out_of_reach": _ratio_out_of_reach,
    "noise_not_run": _noise_not_run,
    "accounted": _accounted,
    "looks": _tests_together,
    "ties": _ties,
}
DECIDED_BY = {"same_samples": _same_samples, "established": _established}
