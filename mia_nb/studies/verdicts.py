"""Verdicts on the claims of a study, with their evidence."""

from __future__ import annotations

from typing import Any

import pandas as pd

from mia_nb.arguments import Count, Delta, Level, PathLike, Several
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.curve import rate_of
from mia_nb.metrics.targets import FPR
from mia_nb.studies.compare import compare, measuring
from mia_nb.studies.contrasts import contrasts
from mia_nb.studies.equal_accuracy import AT_EQUAL, SAME
from mia_nb.studies.evidence import DECIDED_BY, Case, accuracy_apart, evidence
from mia_nb.studies.joins import matches
from mia_nb.studies.paper_verdicts import claims_as_printed, printed_alone, printed_comparisons
from mia_nb.studies.settings import Setting, usable
from mia_nb.studies.study import Claim, Study, load
from mia_nb.types import Scores


@checked
def comparisons(
    study: PathLike,
    settings: dict[Setting, Scores],
    *,
    frontier: pd.DataFrame | None = None,
    delta: Delta = 1e-5,
    n_resamples: Several = RESAMPLES,
    level: Level = 0.95,
    seed: Count = 0,
) -> pd.DataFrame:
    """One row for each comparison that a study's claims rest on and that was run.

    Parameters:
        study: "snn" (Guan et al. 2025), "nsde" (Hong, Wu, Gruber and Lee, arXiv 2501.06686, on
            neural ODEs and SDEs), "privacy" (the same on noise, accounting and defenses), "recipes"
            (what a recipe does to the result), or the path of a YAML file of your own
            (`studies.study` explains its entries).
        settings: the scores of each `Setting`, all on the same masks, row by row (as
            `training.family_pools` trains them). Settings that are not part of a study (a variant;
            input dropout but in "snn"; a defense in "nsde"; noise off in "privacy") are left out. A
            stochastic model has the most queries that were run; attacks that need one (lira_joint)
            count only for such models.
        frontier: `metrics.frontier` of checkpoints, families named by `Setting.label`, for "nsde".
            Comparisons of models are then repeated "at equal accuracy" (needed=False) and "at equal
            gap" (D2; decides): `metrics.matched`, the strongest of the attacks in the frontier, at
            the highest of its default levels that two pairs of both families reach. None: not
            repeated.
        delta: of the curve of epsilon 1 with which D10 of "privacy" compares, in [0, 1).
        n_resamples: resamples of samples behind an interval.
        level: confidence of an interval, in (0, 1).
        seed: of the resamples.

    Returns:
        columns claim, part, compared, metric (auc, test_accuracy, gap, ratio of a TPR, and the TPR
        at the smallest FPR that all settings can measure), needed (decides the claim), value, low,
        high (at `level`), simultaneous_low, simultaneous_high (Bonferroni-adjusted: all comparisons
        of a part that decides nothing, or of all parts that do, jointly: level
        1 - (1 - level) / comparisons), margin, outcome, and relative, relative_low, relative_high:
        for two AUCs with a margin, the difference as a share of the second's AUC - 1/2, with its
        interval at `level` (elsewhere NaN), and queried_less: R of the stochastic models of a
        comparison at equal accuracy that were queried less often along training. outcome is "for"
        if [low, high] is above 0 (or within +-margin), "against" if [simultaneous_low,
        simultaneous_high] is below 0 (or outside +-margin), else "open". Intervals are paired
        (`metrics.interval`): every setting has the same samples and pairs of targets; accuracies
        vary over pairs alone. With one pair of targets everything is "open": intervals are then
        over samples alone, and do not show the effect of training. At equal accuracy `compared`
        also names the attacks and, for stochastic models, R, the outputs averaged; the outcome is
        also "against" if no difference is left: the joint interval lies within +-0.01. D10 has a
        row per attacked SDENet and measurable FPR (10 allowed false positives), value = curve at
        the realised FPR - TPR of the target that has least room below the curve, where

            low = curve(fpr_lo) - tpr_hi,  high = curve(fpr_hi) - tpr_lo         (`tradeoff`)

    with Clopper-Pearson ends of that target alone; "for" if low > 0 at `level` for every target,
    "against" if high < 0 for one of them, after Bonferroni over all (target, FPR, attack) of
    networks with noise (and separately of those without). Non-members alone set the threshold, so
    both ends are exact.

    Raises:
        ValueError: for impossible settings, an unknown study, and when targets were trained on
            different masks.

    Caveat: no interval covers that references are shared and that accuracies are of fixed samples.
    A frontier made with n_resamples=0 decides nothing ("open"), and has its own number of queries.
    D10: records of one training are no independent trainings, so there is no verdict on a
    mechanism.
    """
    rules = load(study)
    settings = _deciding(rules, settings)
    measured = measuring(n_resamples, seed)
    return compare(rules.claims, settings, measured, frontier=frontier, delta=delta, level=level)


@checked
def claims(
    study: PathLike,
    settings: dict[Setting, Scores],
    *,
    comparisons: pd.DataFrame | None = None,
    frontier: pd.DataFrame | None = None,
    ladders: dict[str, pd.DataFrame] | None = None,
    ranks: pd.DataFrame | None = None,
    delta: Delta = 1e-5,
    n_resamples: Several = RESAMPLES,
    level: Level = 0.95,
    seed: Count = 0,
) -> pd.DataFrame:
    """Verdicts on a study's claims, from its `comparisons`.

    Parameters:
        study, settings, frontier, delta, n_resamples, level, seed: as in `comparisons`. For D8 of
            "privacy" pass DP-SGD trained for epsilon 8 (delta 1e-5) alone.
        comparisons: result of `comparisons` on the same settings (not as printed), which then
            determines frontier, n_resamples, level and seed of the extended verdict. None: computed
            here.
        ladders: {label: `auditing.ladder`} of networks (`Setting.label`), for "privacy": those with
            DP-SGD in row 4 are evidence for D8, the others with a nominal value (row 1) for D14.
        ranks: `metrics.agreement`, for R7 of "recipes", which holds if every ratio's lower end is
            above 0.9, and does not hold if one's upper end is below.

    Returns:
        A row per claim (index "S1", "D1", "R1" ...), columns claim, verdict, evidence, compared,
        accuracy_apart (the largest difference of mean test accuracy between the models of one
        deciding comparison, in points, 1 = 1 %; NaN if no comparison has different models), and for
        the three published studies as_printed and as_printed_evidence: the same rules on the
        settings and attacks of the paper's tables alone (Attack-R in the form of Guan et al.,
        queries with input dropout combined by Eq. 8, the fewest queries of a stochastic network, no
        checkpoints), "not printed" where the tables decide nothing, "ours" for a remark of this
        package. verdict and the columns beside it are the extended ones, on everything that was
        run. "holds": every comparison that the claim needs is for it at `level`; "does not hold":
        one is against it with all of them taken jointly, so that many comparisons do not refute by
        chance; "not run": nothing to compare; else "not resolved", even if all that was run is for
        the claim but a part that it needs is missing. A verdict may be followed by
        " (at unequal accuracy)" if risks of models more than 1 point apart are compared;
        " (also at equal accuracy)" if the comparisons that decide have the same outcome in the
        frontier, with R where stochastic models were queried less often there; " (at FPR 0.1 and
        above)" if smaller FPRs are not measurable. "not at equal accuracy": it holds for the models
        as they are, but a comparison at equal accuracy is against it or finds no difference. "not
        resolved (design check failed)": an AUC resolved below 0.5 is no absence of risk. D14 never
        holds: it is "not established", or does not hold if the ladder says that its audit refutes
        the nominal value.

    Raises:
        ValueError: as `comparisons` does.

    Caveat: comparisons are at the accuracies that the evidence states, which are rarely equal.
    Claims are not corrected for each other, nor for the choice of data. Verdicts are about the
    attacks that were run, not about what any attack could find: where none exceeds a curve, another
    may. A claim on recipes is about these recipes on these data.
    """
    rules = load(study)
    settings = _deciding(rules, settings)
    measured = measuring(n_resamples, seed)
    levels = {"delta": delta, "level": level}
    given = {"ladders": ladders or {}, "ranks": ranks, **levels}  # as a `Case` has them
    if comparisons is None:
        comparisons = compare(rules.claims, settings, measured, frontier=frontier, **levels)
    table = _verdict_table(rules.claims, settings, comparisons, frontier=frontier, **given)
    name = str(study)
    if not rules.printed or name.endswith(".yaml"):  # only a shipped study has its paper's tables
        return table

    printed_claims = claims_as_printed(name)
    printed_settings = printed_alone(name, settings)
    rows = compare(printed_claims, printed_settings, measured, frontier=None, **levels)
    printed = _verdict_table(printed_claims, printed_settings, rows, frontier=None, **given)
    on_print = printed_comparisons(name)
    for claim_name, claim in rules.claims.items():
        if not claim.quote:
            printed.loc[claim_name, "verdict"] = "ours"
        elif claim.proved:
            printed.loc[claim_name, "verdict"] = claim.proved
        elif not on_print[claim_name]:
            printed.loc[claim_name, "verdict"] = "not printed"
    table.insert(1, "as_printed", printed["verdict"])
    table["as_printed_evidence"] = printed["evidence"]
    return table


@checked
def evidence_readable(table: pd.DataFrame) -> pd.DataFrame:
    """What verdicts rest on, as a table for reading: a row per phrase of the evidence.

    Parameters:
        table: of `claims`.

    Returns:
        Column evidence, indexed by claim ("S1. RMIA is stronger ...") and verdict; the evidence of
        verdicts as printed stands under "as printed: holds" and the like. `widgets.folded` shows it
        as a list.
    """
    rows = []
    for number, claim in table.iterrows():
        name = f"{number}. {claim['claim']}"
        evidence_of = {claim["verdict"]: claim["evidence"]}
        if "as_printed" in table:
            evidence_of[f"as printed: {claim['as_printed']}"] = claim["as_printed_evidence"]
        for verdict, text in evidence_of.items():
            for phrase in text.split("; "):
                rows.append((name, verdict, phrase))
    phrases = pd.DataFrame(rows, columns=["claim", "verdict", "evidence"])
    return phrases.set_index(["claim", "verdict"])


def _deciding(study: Study, settings: dict) -> dict[Setting, Scores]:
    """The settings in normal form that decide the study's claims; ValueError as in `usable`."""
    deciding = {}
    for setting, scores in usable(settings, study.models).items():
        if matches(setting, study.decide):
            deciding[setting] = scores
    return deciding


def _verdict_table(
    claims: dict[str, Claim], settings: dict[Setting, Scores], rows: pd.DataFrame, **given: Any
) -> pd.DataFrame:
    """A row per claim, with columns claim, verdict, evidence, compared and accuracy_apart.

    Parameters:
        claims: that are judged
        settings: those that decide
        rows: of `compare`, for all claims
        given: the other entries of a `Case`
    """
    verdicts = {}
    for name, claim in claims.items():
        claim_rows = rows[rows["claim"] == name]
        case = Case(claim, settings, contrasts(claim, settings), claim_rows, **given)
        verdicts[name] = _claim_row(case)
    return pd.DataFrame.from_dict(verdicts, orient="index").rename_axis("id")


def _claim_row(case: Case) -> dict[str, object]:
    """The row of one claim."""
    claim = case.claim
    auc = case.needed[case.needed["metric"] == "auc"]
    check_failed = (auc["simultaneous_high"] < claim.design_check).any()
    deciding_contrasts = [contrast for contrast in case.contrasts if contrast.needed]
    apart = accuracy_apart(deciding_contrasts, case.settings)
    verdict = _plain_verdict(case)
    if check_failed:
        verdict = "not resolved (design check failed)"
    elif verdict in ("holds", "does not hold"):
        unequal = claim.equal and apart > SAME + 1e-9
        verdict = _qualified(verdict, case, unequal)
    row = {
        "claim": claim.sentence,
        "verdict": verdict,
        "evidence": evidence(case, check_failed),
        "compared": "; ".join(dict.fromkeys(case.needed["compared"])),
        "accuracy_apart": 100 * apart,
    }
    if claim.decided_by:
        row |= DECIDED_BY[claim.decided_by](case)
    return row


def _plain_verdict(case: Case) -> str:
    """The verdict from the rows that decide and the parts that were not run."""
    outcomes = case.needed["outcome"]
    if not len(outcomes):
        return "not run"
    if (outcomes == "against").any():
        return "does not hold"
    if (outcomes == "for").all() and not case.missing:
        return "holds"
    return "not resolved"


def _qualified(verdict: str, case: Case, unequal: bool) -> str:
    """A verdict that holds or does not, qualified by the comparisons at equal accuracy, or by the
    smallest FPR at which attacks were compared with a curve.
    """
    outcomes = case.rows.loc[case.rows["part"] == AT_EQUAL["test_acc"], "outcome"]
    against = (outcomes == "against").any()
    all_for = len(outcomes) == case.number_of_deciding_aucs and (outcomes == "for").all()
    if verdict == "holds" and against:
        return "not at equal accuracy"
    confirmed = all_for if verdict == "holds" else against
    if confirmed and len(outcomes):
        # R of stochastic models that were queried less often along training
        queried_less = ", ".join(case.rows["queried_less"].dropna()).split(", ")
        words = ["also at equal accuracy", *dict.fromkeys(filter(None, queried_less))]
        return f"{verdict} ({', '.join(words)})"
    if unequal:
        return f"{verdict} (at unequal accuracy)"
    if verdict == "holds" and any(contrast.minus == "curve" for contrast in case.contrasts):
        smallest_rate = min(map(rate_of, case.needed["metric"]))
        if smallest_rate > FPR[0]:
            return f"holds (at FPR {smallest_rate:g} and above)"
    return verdict
