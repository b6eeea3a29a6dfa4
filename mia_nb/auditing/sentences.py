"""The sentences of an audit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from mia_nb.arguments import Flag
from mia_nb.attacks import in_words
from mia_nb.checks import checked, quantity
from mia_nb.metrics import tpr_at
from mia_nb.metrics.curve import clopper_pearson_of_groups
from mia_nb.metrics.permutation import LEVEL, Evidence
from mia_nb.metrics.sentences import WHAT_LOWERS
from mia_nb.metrics.table_text import in_digits, percent_interval
from mia_nb.metrics.tables import by_attack
from mia_nb.metrics.targets import measurable_rates, scored, tied_floor
from mia_nb.types import Scores

if TYPE_CHECKING:
    from mia_nb.auditing.verdicts import LimitVerdict

EXCEEDED = "exceeded"
BELOW = "not exceeded"
OPEN = "not established"
RATE = 0.1  # false positive rate of the threshold that the population sets
LOOK = "Look at the outputs first:"
VARIES = (
    f"{LOOK} the model's output for a sample differs when it is queried again or among others: put"
    " it in evaluation mode (model.eval()), and average its noise where it has any."
)
AUGMENTED = (
    "Look at the inputs first: {} gives others for the same samples when it is read again. Random"
    " augmentation hides a leak, or makes one up where one side alone has it: switch it off."
)
TIED = (
    "Scores tie: state a rate of false positives that the attacks can reach, or give the outputs"
    " with more digits"
)
UNTESTED = "Raw inputs could not be compared: that train and test come from one source is assumed."
FAILED = "The negative control FAILED: do not quote these numbers."
CONCLUSIONS = {  # about a model, by the outcome of its verdict
    EXCEEDED: "gives members of its training data away",
    OPEN: "was not shown to give members of its training data away",
    BELOW: "ranks members below non-members (are train and test swapped?)",
}
TWINS = (
    "Models retrained on random halves of the same samples (retrain=, references=) would also show"
    " whether samples were memorised or are easy for every model; which single samples are exposed;"
    " how many members are found at very few false positives, where attacks that compare such"
    " models are far stronger; and what another training run would give. Finding little here"
    " proves nothing: a stronger attack may succeed."
)

VAGUE = 0.05  # an AUC's interval of a larger half width says nothing by containing 1/2
WORDS = {
    "pairs": "{pairs} of models on complementary halves",
    "coins": "{models}, a fair coin for every sample and model",
    "mask": "1 model, one mask",
    "masks": "{models} on {training_sets}, given",
}
SEES = (
    "The attacker sees the outputs for all classes and the true labels, knows how the target was"
    " made, and has"
)
PARTS = {  # of the permutation test
    "area": "the ranks of all samples",
    "loss": "the mean loss",
    "tail": "the largest scores",
}
NO_CONTROL = (
    "Find out first why attacks succeed where there is nothing to find; use no number until then."
)
COMPARABLE = (
    "Take train and test from one source, drawn at random, or train models on random halves of both"
    " (retrain=), and audit again: until then no number here is about membership."
)
SWAPPED = "Check whether train and test are swapped, and audit again."
WEIGH = (
    "Before the model is released, decide who may query it: its outputs alone tell members from"
    " others."
)
RETRAIN = (
    "Train models like it on random halves of the same samples (mia.audit with retrain=, or mia-nb"
    " audit --model): attacks that compare them are far stronger, and show which samples are"
    " exposed."
)
NO_GUARANTEE = (
    "Take this for no guarantee: more models, queries or samples may find what these attacks"
    " missed."
)


@checked
def headline(
    table: pd.DataFrame, self_test_passed: Flag, design: dict | None = None, *, finding: str = ""
) -> str:
    """What the strongest attack found, with interval, sizes and the state of the negative control.

    Parameters:
        table: of `metrics.summary`.
        self_test_passed: of `metrics.self_test`.
        design: from `design`, for the number of pairs or training sets; if it includes the entries
            of `comparable`, remarks and doubt come first.
        finding: a sentence in place of the strongest attack's interval: for one finished model the
            headline of `audit_outputs`, whose permutation test has more power.

    Returns:
        one to a few sentences. "no better than a coin" only where the interval contains 1/2 and is
        at most .05 wide on each side; a wider one shows nothing.
    """
    facts = design or {}
    doubt = facts.get("doubt", "")
    finding = finding.removeprefix(doubt).strip()  # a finding begins with its doubt
    control = "passed" if self_test_passed else "FAILED: do not quote these numbers"
    sentences = (
        *facts.get("remarks", ()),
        doubt,
        finding or _strongest_attack(table, facts),
        f"The negative control {control}.",
        facts.get("assumed"),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _strongest_attack(table: pd.DataFrame, facts: dict) -> str:
    """The sentence of `headline` on the strongest attack; facts: of the design."""
    auc = by_attack(table, "auc")
    strongest = auc.loc[auc["value"].drop("max").idxmax()]
    low, high = auc.loc["max", ["low", "high"]]
    if low > 0.5 and facts.get("doubt"):
        finding = "tells the two sides apart"
    elif low > 0.5:
        finding = "tells members from non-members"
    elif high < 0.5:
        finding = "ranks members below non-members (is the design right?)"
    elif (high - low) / 2 > VAGUE:
        finding = (
            "cannot tell members from non-members, nor show that it could not: the interval is too"
            " wide"
        )
    else:
        finding = "finds members no better than a coin, as far as these numbers resolve"
    targets = quantity(int(strongest["targets"]), "target")
    if facts.get("models", 1) > 1:
        unit = "pair" if facts["kind"] == "pairs" else "training set"
        targets += f" ({quantity(facts['units'], unit)})"
    attacks = quantity(len(auc) - 1, "attack")
    return (
        f"The strongest of {attacks}, {in_words(strongest.name)}, {finding}: AUC"
        f" {strongest['value']:.3f} [{low:.3f}, {high:.3f}], {targets},"
        f" n1 = {strongest['n1']:,.0f} members, n0 = {strongest['n0']:,.0f} non-members."
    )


def design_words(facts: dict) -> str:
    """A design in sentences; facts: those of `auditing.design`."""
    units = facts["units"]
    models = facts["models"]
    start = WORDS[facts["kind"]].format(
        pairs=quantity(units, "pair"),
        models=quantity(models, "model"),
        training_sets=quantity(units, "training set"),
    )
    start += f": of {facts['audited']:,} audited samples"
    n1 = facts["members"]
    n0 = facts["non_members"]
    k = facts["references"]
    if models == 1:
        sizes = f"it has {n1:,} members and {n0:,} non-members."
    else:
        left_out = "A model with the target's training set, or with exactly the others,"
        if facts["kind"] == "pairs":
            left_out = "A target's complementary model, trained on exactly the other half,"
        sizes = (
            f"each model has at least {n1:,} members and {n0:,} non-members. Every model is the"
            f" target in turn. {left_out} is no reference: it would give the answer away."
        )
    knows = "no model to compare with"
    if k:
        knows = f"{quantity(k, 'model')} with and {k} without each sample to compare with"
    return f"{start} {sizes} {SEES} {knows}; weights and gradients stay hidden."


def next_steps(
    outcome: str,
    *,
    doubt: str = "",
    passed: bool = True,
    retrained: bool = False,
    verdicts: Sequence[LimitVerdict] = (),
) -> list[str]:
    """What to do after an audit, the most pressing first.

    Parameters:
        outcome: of the verdict on guessing: exceeded, not exceeded or not established.
        doubt: why nothing can be concluded; "" if something can.
        passed: whether the negative control passed.
        retrained: whether there were models on random halves of the same samples.
        verdicts: on the stated limits.
    """
    if not passed:
        return [NO_CONTROL]
    if doubt:
        return [COMPARABLE]
    if outcome == BELOW:
        return [SWAPPED]
    steps = []
    undecided = [verdict for verdict in verdicts if verdict.outcome == OPEN]
    # an interval below the limit decides nothing where scores tie, however many samples there are
    tied = [verdict for verdict in undecided if verdict.high <= verdict.threshold]
    wide = [verdict.limit for verdict in undecided if verdict not in tied]
    if wide:
        steps.append(f"Audit more samples: {', '.join(wide)} could not be decided.")
    if tied:
        limits = ", ".join(verdict.limit for verdict in tied)
        steps.append(f"{TIED}: {limits} could not be decided.")
    if outcome == EXCEEDED:
        steps += [WEIGH, WHAT_LOWERS]
    if not retrained:
        steps.append(RETRAIN)
    elif outcome == OPEN:
        steps.append(NO_GUARANTEE)
    return steps


def percent(share: float) -> str:
    """A share in percent with three digits; only what is all is called 100 %."""
    text = f"{100 * share:.3g}"
    if text == "100" and share < 1:
        return "more than 99.9 %"
    return f"{text} %"


def p_words(p: float) -> str:
    """A p-value, with one more digit near the level, to show on which side it lies."""
    return f"p = {p:.4f}" if p < 2 * LEVEL else f"p = {p:.3f}"


def decision_words(evidence: Evidence) -> str:
    """A sentence on the part of the permutation test that decided."""
    sentence = (
        "What decides is one permutation test of all attacks' ranks, of the mean loss and of the"
        f" largest scores: {p_words(evidence.p)}, where {LEVEL:g} or less counts as a leak"
    )
    if evidence.p <= LEVEL:
        return f"{sentence}; the evidence is strongest in {PARTS[evidence.part]}."
    if evidence.smallest > LEVEL:
        return (
            f"{sentence}, and {evidence.units} units that change sides can never give less than"
            f" {evidence.smallest:.2g}."
        )
    return f"{sentence}."


def tail_words(evidence: Evidence, scores: np.ndarray, member: np.ndarray) -> str:
    """How many of the largest scores belong to members.

    scores (N,): of the attack whose largest scores are counted.
    """
    top = evidence.top
    members = evidence.top_members
    if members >= top:
        top = max(top, leading_members(scores, member))
        finding = f"the {top:,} largest scores all belong to members"
    elif (scores == np.nanmax(scores)).sum() == top:
        finding = f"{members:,} of the {top:,} samples that tie for the largest score are members"
    else:
        finding = f"{members:,} of the {top:,} largest scores belong to members"
    return (
        f"{finding} ({in_words(evidence.tail_attack)}), where chance would give"
        f" {top * evidence.member_share:.1f} of {top:,}"
    )


def leading_members(scores: np.ndarray, member: np.ndarray) -> int:
    """How many members lie above every non-member."""
    highest = np.max(scores[~member & ~np.isnan(scores)], initial=-np.inf)
    return int((scores[member] > highest).sum())


def loss_words(name: str, log_p: np.ndarray, member: np.ndarray, gap: np.ndarray) -> str:
    """The mean loss, or excess loss, of both sides and the difference.

    log_p (N,): the values compared, whose negative is the loss. gap: from `loss_gap`.
    """
    inside = in_digits(-log_p[member].mean(), ".3g")
    outside = in_digits(-log_p[~member].mean(), ".3g")
    value, low, high = (in_digits(number, ".3g") for number in gap)
    difference = f"a difference of {value}"
    if not np.isnan(gap[1]):
        difference += f" [{low}, {high}]"
    if name == "loss":
        return f"their mean loss is {inside}, that of others {outside}, {difference}"
    return (
        "the mean loss, less the loss that the model itself expects (its entropy), is"
        f" {inside} for them and {outside} for others, {difference}"
    )


def threshold_words(called: np.ndarray, member: np.ndarray, units: np.ndarray | None = None) -> str:
    """Whom a threshold accuses that was set by the test samples of the other half.

    called (N,): whether a sample is accused. units (N,): labels of samples that belong together;
    None: each sample is a unit.
    """
    half = (~member).sum() // 2
    if not called.any():
        return (
            f"Of {half:,} other test samples too many tie for the largest score, or they are too"
            f" few, for a threshold of {percent(RATE)} false positives: at that rate nobody is"
            " accused."
        )
    if units is None:
        units = np.arange(len(member))
    accused = []
    for side in (member, ~member):
        groups = len(np.unique(units[side]))
        low, high = clopper_pearson_of_groups(called[side].sum(), side.sum(), groups)
        accused.append(percent_interval(called[side].mean(), low, high))
    of_members, of_others = accused
    return (
        f"With a threshold that {half:,} other test samples set for {percent(RATE)} false"
        f" positives, the loss threshold accuses {of_members} of members and {of_others} of test"
        " samples (each half of the test samples sets it for the other)."
    )


def finding_words(verdict: LimitVerdict, doubted: bool) -> str:
    """What an interval of the AUC says, with its numbers."""
    conclusion = conclusion_words(verdict, doubted, verdict.low > 0.5)
    return f"{conclusion}: {strongest_words(verdict)}"


def conclusion_words(verdict: LimitVerdict, doubted: bool, differs: bool) -> str:
    """The verdict in words. differs: whether the two sides differ, for whatever reason."""
    if not doubted:
        return CONCLUSIONS[verdict.outcome]
    return "treats train and test differently" if differs else CONCLUSIONS[OPEN]


def strongest_words(verdict: LimitVerdict) -> str:
    """The AUC of the strongest attack."""
    # the table has each attack's own interval, which is narrower
    corrected = f" (corrected for {verdict.attacks} attacks)" if verdict.attacks > 1 else ""
    attacks = quantity(verdict.attacks, "attack")
    return (
        f"the strongest of {attacks} ({in_words(verdict.attack)}) ranks a random"
        f" member above a random non-member with probability {verdict.value:.3f}"
        f" [{verdict.low:.3f}, {verdict.high:.3f}]{corrected}, where guessing gives 0.5"
        f" ({verdict.n1:,} members, {verdict.n0:,} non-members)"
    )


def rate_words(scores: Scores, table: pd.DataFrame, attack: str) -> str:
    """The TPR of an attack at the smallest false positive rate that can be measured."""
    rates = measurable_rates(scores)
    if not rates:
        return (
            f"What share is found at {percent(RATE)} false positives takes 100 non-members to"
            " measure."
        )
    name = in_words(attack)
    rate = rates[0]
    floor = tied_floor(scores)
    if floor > rate:
        at = tpr_at(*scored(scores, 0), floor)
        return (
            f"Scores tie: the smallest rate of false positives that {name} can have is"
            f" {percent(floor)} ({at.fp:,} of {at.n0:,}), at which it finds"
            f" {percent_interval(at.tpr, at.low, at.high)} of members; no smaller rate exists."
        )
    tpr, low, high = by_attack(table, "tpr", rate).loc[attack, ["value", "low", "high"]]
    return (
        f"At {percent(rate)} false positives {name} finds {percent_interval(tpr, low, high)}"
        f" of members; guessing finds {percent(rate)}."
    )
