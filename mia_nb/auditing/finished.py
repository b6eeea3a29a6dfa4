"""The one finished model that somebody has: attacked as it is, against models of theirs, or against
twins that their own training function makes.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb import escape, store
from mia_nb._files import replacing
from mia_nb._image_files import npz_arrays
from mia_nb.arguments import Anything, Array, Count, PathLike, Positive, Whole
from mia_nb.attacks import in_words, score, suite
from mia_nb.attacks.margins import log_p as log_p_of
from mia_nb.auditing.evidence import (
    Units,
    decision_words,
    loss_gap,
    loss_words,
    percent,
    resampling_units,
    tail_words,
)
from mia_nb.auditing.gate import BELOW, EXCEEDED, OPEN, Verdict, judge, limits
from mia_nb.auditing.outputs import LOOK, outputs_from
from mia_nb.auditing.readers import (
    SEPARATORS,
    class_numbers,
    estimator,
    logits_of,
    named_classes,
    numbers_of,
    numpy_of,
    said,
    sample_of,
    table_in,
    wants_columns,
    without_extremes,
)
from mia_nb.auditing.shift import COPIES, DOUBT, LEVEL, ShiftGuard, shift_guard
from mia_nb.checks import checked, mask, shown
from mia_nb.digests import digest, digest_of_function
from mia_nb.metrics import (
    by_group,
    clopper_pearson,
    readable,
    readable_groups,
    self_test,
    tpr_at,
)
from mia_nb.metrics.groups import largest_contribution
from mia_nb.metrics.null import SelfTest
from mia_nb.metrics.permutation import LEVEL as DECISIVE
from mia_nb.metrics.permutation import membership_test
from mia_nb.metrics.tables import by_attack, table_of
from mia_nb.metrics.uncertainty import RESAMPLES, measurable_rates, scored, tied_floor
from mia_nb.metrics.verdict import measured_advice
from mia_nb.types import Scores, Signals

REDRAWS = 50  # masks redrawn for the negative control
EXACT = 2**53  # whole numbers up to here are floats too
RATE = 0.1  # false positive rate of the threshold that the population sets
DATA = (
    "wanted (x, y) of arrays or tensors, or a data set whose [i] is (x, y) or has an image and a"
    " label, or a DataLoader of such a data set"
)
MODEL = (
    "wanted a torch module, or a function of a batch that gives logits (batch, classes); of"
    " scikit-learn the estimator itself"
)
VARIES = (
    f"{LOOK} the model's output for a sample differs when it is queried again or among others: put"
    " it in evaluation mode (model.eval()), and average its noise where it has any."
)
UNTESTED = "Raw inputs could not be compared: that train and test come from one source is assumed."
FAILED = "The negative control FAILED: do not quote these numbers."
FOUND = {
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


class ModelAudit(NamedTuple):
    """What `mia_nb.audit` found: `text` says it; `table` is that of `metrics.summary`.

    by_class, by_group: what `by_group` gives of the first attack of the table, which is fixed
    beforehand. verdict: by the permutation test, whose p it holds; its metric says what decided:
    auc, loss (the mean loss) or tail (the largest scores). twins: the same of the retrained models,
    each a target in turn, by the interval of the AUC, or None.
    """

    text: str
    table: pd.DataFrame
    scores: dict[str, Scores]
    by_class: pd.DataFrame
    by_group: pd.DataFrame | None
    verdict: Verdict
    self_test: SelfTest
    signals: Signals
    shift: ShiftGuard | None = None
    twins: ModelAudit | None = None

    def _views(self) -> dict[str, pd.DataFrame]:
        """The tables below the text."""
        attacks = readable(self.table[self.table["attack"] != "max"])
        views = {"attacks": attacks[[name for name in attacks if name[:3] in ("AUC", "TPR")]]}
        split = {"classes": self.by_class, "groups": self.by_group}
        return views | {
            f"{title}, by {attacks.index[0]}": readable_groups(table)
            for title, table in split.items()
            if table is not None
        }

    def __repr__(self) -> str:
        views = self._views().items()
        tables = [
            f"{escape.terminal(title)}\n{escape.cells(table).to_string()}" for title, table in views
        ]
        return "\n\n".join([escape.lines(self.text), *tables])

    def _repr_html_(self) -> str:
        said = [f"<p>{escape.html(line)}</p>" for line in self.text.split("\n")]
        tables = [
            f"<h4>{escape.html(title)}</h4>{escape.html_table(table)}"
            for title, table in self._views().items()
        ]
        return "".join(said + tables)


def entropy(target: Signals, references: Signals | None = None) -> np.ndarray:
    """Label free: s = sum_c p_c log p_c. Source: Song & Mittal 2021, without their thresholds."""
    return -target.entropy[0].mean(0)


def modified_entropy(target: Signals, references: Signals | None = None) -> np.ndarray:
    """s = (1 - p_y) log p_y + sum_{c != y} p_c log(1 - p_c). Source: as `entropy`."""
    return -target.modified_entropy[0].mean(0)


ALONE = {name: attack for name, attack in suite(0).items() if name != "attack_p"} | {
    "entropy": entropy,
    "modified entropy": modified_entropy,
}
LOSS, EXCESS = "loss", "excess loss"  # values whose means are compared


@checked
def audit_model(
    model: Anything,
    train: Anything,
    test: Anything,
    *,
    references: Anything | None = None,
    retrain: Anything | None = None,
    key: str | None = None,
    models: Whole = 8,
    root: PathLike = "results",
    batch: Whole = 512,
    device: Anything | None = None,
    seed: Count = 0,
    classes: Array | None = None,
    groups: Array | None = None,
    n_resamples: Count = RESAMPLES,
) -> ModelAudit:
    """Does this finished model give away which samples it was trained on?

    Parameters:
        model: a torch module (queried in evaluation mode, left as it was found), or a function of a
            batch, NumPy slices of `train` and `test`, that gives logits (batch, classes); or an
            estimator of scikit-learn. One that was fitted on a table gets tables.
        train: (x, y), samples that the model was trained on and their class numbers from 0, or the
            labels that an estimator has in `classes_`; arrays, tensors, tables, or a data set that
            gives (x, y) by number, without random augmentation.
        test: the same of samples that it never saw, from the same source.
        references: [(model, mask)] of further models, trained on samples of `train` and `test` that
            chance drew; mask (n_train + n_test,): which.
        retrain: your training function, retrain(images, labels, seed) -> model, of NumPy arrays (a
            table where `model` gets tables) and class numbers from 0. It is called for `models`
            complementary random halves of `train` and `test` together; what each model puts out is
            kept under `root`, so that a killed run goes on, found again by the data, the seed, the
            number of models, and all that `retrain` computes with (`digests.digest_of_function`):
            another closure, default or global is another training.
        key: a name of this training, instead of what `retrain` computes with: one that you change
            whenever the training changes. It is needed where `retrain` uses what cannot be compared
            (a connection, a lock) or what changes by itself (a list that it appends to).
        models: how many are retrained, an even number from 4 up; the two pairs of 4 serve as
            references and decide nothing by themselves.
        root: folder of results.
        batch: samples in one call of the model.
        device: where a torch module is moved; None: it stays where it is.
        seed: of every draw.
        classes: (K,) names; None: their numbers.
        groups: (n_train + n_test,) labels, for the same results per group as per class, and what
            belongs together (a patient's images) where each group is wholly in train or in test.
        n_resamples: resamples of the bootstrap.

    Returns:
        A `ModelAudit`; print it, or let a notebook show it.

    First `shift_guard` compares the raw inputs: where it tells the two sides apart, so may attacks,
    whatever was memorised. Loss, correctness and entropies are judged on all samples; attack_p and
    a threshold are calibrated by samples of `test`, each half by the other. With other models
    the `suite` that so many support is run. Retrained models are also targets in turn, in `twins`:
    chance drew their halves, so that no difference of `train` and `test` is in there.

    That members are given away is said where one permutation test of all attacks' ranks, the mean
    loss (and the loss less its expectation by the model) and the largest scores gives p <= .025
    (`metrics.permutation`). Tested is whether members and non-members are exchangeable: a
    model without a leak is accused in at most 2.5 % of audits, with 12 samples a side too, if
    samples are independent of each other. Where `groups` lie wholly in train or in test, groups are
    dealt out anew, not samples.
    Without `groups` two signs are looked for: samples that follow each other and have similar
    losses are taken together in blocks; where nearest neighbours among the inputs share their side
    too often, nothing is concluded. Neither finds every dependence. The halves of retrained models
    were dealt out by sample, so that dependent samples do no harm in `twins`.

    Raises ValueError of one line for probabilities instead of logits, a model that fails or gives
    other shapes, masks and labels that do not fit. Caveat: files and environment variables that
    `retrain` reads are not seen; name them in `key`.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(400, 8)), np.arange(400) % 2
    >>> def nearest(batch):  # it knows its training samples by heart
    ...     far = ((batch[:, None] - x[None, :200]) ** 2).sum(2)
    ...     return np.stack([-far[:, y[:200] == k].min(1) for k in (0, 1)], axis=1)
    >>> found = audit_model(nearest, (x[:200], y[:200]), (x[200:], y[200:]))
    >>> found.verdict.outcome, bool(found.table.loc[0, "value"] > 0.9)
    ('exceeded', True)
    """
    if references and retrain:
        raise ValueError("references and retrain were both given; give one")
    if retrain is not None and not callable(retrain):
        raise ValueError(
            f"retrain={shown(retrain)}: wanted a function (images, labels, seed) -> model"
        )
    if models < 4 or models % 2:
        raise ValueError(
            f"models={models}: wanted an even number from 4 up, for complementary halves"
        )
    if batch < 1:
        raise ValueError(f"batch={batch}: wanted a number of samples")
    if key is not None and not retrain:
        raise ValueError(f"key={shown(key)} names what retrain does; leave it out without retrain")
    if key == "":
        raise ValueError('key="": wanted a name of the training, or none')
    known = named_classes(model)
    x, y, member = _together(train, test, known)
    table = x
    x = numpy_of(x)
    if groups is not None:
        groups = numpy_of(groups)
        if groups.dtype == object:  # numbers and text do not compare
            groups = groups.astype(str)
    if groups is not None and groups.shape != y.shape:
        raise ValueError(f"groups have shape {groups.shape}; wanted {y.shape}, a label per sample")
    shift = _guard(table, y, member, seed)
    query = partial(outputs, x=table, batch=batch, device=device, known=known)
    classes = known if classes is None else classes
    arrays = {"logits": query(model)[None], "labels": y, "member": member[None]}
    arrays |= {} if classes is None else {"classes": np.asarray(classes, str)}
    # what is wrong with the outputs is said before anything is trained
    signals, _, names, _ = outputs_from(arrays, "finished", "")
    part = slice(max(min(batch, len(x)) // 2, 1))
    close = np.isclose(
        query(model, x=_rows(table, part)), arrays["logits"][0, part], rtol=0.01, atol=0.01
    )
    untested = math.isnan(shift.auc) and shift.classes_p >= LEVEL
    copies = _copies(x, y, member)
    told = list(signals.info["remarks"])
    if copies:
        told.append(copies)
    if not close.all():
        told.append(VARIES)
    if untested:
        told.append(UNTESTED)
    doubt = "" if shift.passed or untested else f"{DOUBT}: {shift.note}."
    units = resampling_units(
        signals.margin[0].mean(0),
        y,
        member,
        groups=groups,
        x=x if isinstance(x, np.ndarray) else None,
        seed=seed,
    )
    doubt = doubt or units.doubt
    judged = partial(_judged, names=names, groups=groups, n_resamples=n_resamples, seed=seed)
    if references:
        given = _given(references, len(y), query)
        found = _compared(arrays, given, judged, doubt, units)
    elif retrain:
        given = table if wants_columns(model) else x
        others = _retrained(retrain, given, y, models, Path(root), seed, query, key)
        found = _compared(arrays, others, judged, doubt, units, models)
    else:
        found = _alone(signals, judged, doubt, seed, units)
    views = {"classes": found.by_class, "groups": found.by_group}
    split = [largest_contribution(t, what) for what, t in views.items() if t is not None]
    told += [found.text, *filter(None, split)]
    # measured on images: a batch of these has channels or rows, and columns
    told += measured_advice() if found.verdict.outcome == EXCEEDED and x.ndim > 2 else []
    return found._replace(shift=shift, text="\n".join(told))


def _alone(signals: Signals, judged: Callable, doubt: str, seed: int, units: Units) -> ModelAudit:
    """The attacks that need no other model."""
    ranked = partial(_ranked_among_others, units=units.labels, seed=seed)
    found = judged(signals, ALONE, doubt=doubt, units=units, calibrated={"attack_p": ranked})
    one_minus_p, member = scored(found.scores["attack_p"], 0)
    threshold = _threshold(1 - one_minus_p <= RATE, member)
    return found._replace(text="\n".join([found.text, threshold, TWINS]))


def _ranked_among_others(loss: Scores, *, units: np.ndarray | None, seed: int) -> Scores:
    """The population attack, cross-fitted: 1 - p of each sample's loss among the non-members of the
    other half.

    Samples are dealt into two halves, whole units together, and each half is ranked among the
    non-members of the other. So all non-members are judged, and none calibrates itself.
    p = (1 + non-members of the other half whose score is at least as large) / (1 + all of them).
    """
    value = loss.value[0]
    member = loss.member[0]
    in_first = _in_first_half(member, units, seed)
    ranked = np.empty(len(value))
    for here in (in_first, ~in_first):
        others = np.sort(value[~here & ~member])
        below = np.searchsorted(others, value[here], side="left")
        ranked[here] = below / (1 + len(others))
    return replace(loss, value=ranked[None], info=loss.info | {"attack": "attack_p"})


def _in_first_half(member: np.ndarray, units: np.ndarray | None, seed: int) -> np.ndarray:
    """(N,) bool, half of the members' units and half of the others'. Where one side is a single
    unit its samples are dealt out.
    """
    number = np.arange(len(member)) if units is None else np.unique(units, return_inverse=True)[1]
    rng = np.random.default_rng(seed)
    first = np.zeros(len(member), bool)
    for side in (member, ~member):
        together = number[side]
        if len(np.unique(together)) == 1:
            together = np.arange(len(together))
        drawn = rng.permutation(np.unique(together))
        first[side] = np.isin(together, drawn[: len(drawn) // 2])
    return first


def _threshold(called: np.ndarray, member: np.ndarray) -> str:
    """Whom a threshold accuses that the test samples of the other half set."""
    half = (~member).sum() // 2
    if not called.any():
        return (
            f"Of {half:,} other test samples too many tie for the largest score, or they are too"
            f" few, for a threshold of {RATE:.0%} false positives: at that rate nobody is accused."
        )
    rates = []
    for side in (member, ~member):
        low, high = clopper_pearson(called[side].sum(), side.sum())
        rates.append(f"{called[side].mean():.1%} [{low:.1%}, {high:.1%}]")
    return (
        f"With a threshold that {half:,} other test samples set for {RATE:.0%} false positives, the"
        f" loss threshold accuses {rates[0]} of members and {rates[1]} of test samples (each"
        " half of the test samples sets it for the other)."
    )


def _compared(
    arrays: dict,
    others: Iterable[tuple],
    judged: Callable,
    doubt: str,
    units: Units,
    twins: int = 0,
) -> ModelAudit:
    """The finished model against the others, of which so many are its retrained twins."""
    for name, more in zip(("member", "logits"), zip(*others, strict=True), strict=True):
        arrays = arrays | {name: np.stack([*arrays[name], *more])}
    inside = arrays["member"][1:].sum(0)
    count = len(arrays["member"]) - 1
    if not (k := int(np.median(np.minimum(inside, count - inside)))):
        raise ValueError(
            f"the {count} references leave most samples without a model on one side; wanted some"
            " trained with and some without each sample (mia-nb plan draws such masks)"
        )
    signals = outputs_from(arrays, "finished", "").signals
    found = judged(signals, suite(k), targets=[0], doubt=doubt, units=units)
    size = f"{arrays['member'][1:].sum(1).mean():,.0f}"
    text = [
        found.text,
        f"Compared with {count} models trained on {size} samples each of train and test ({k} with"
        f" and {k} without the typical sample; the finished model was trained on"
        f" {arrays['member'][0].sum():,}). That {'' if twins else 'chance drew these, and that '}"
        "they were trained like the finished one is assumed: check it.",
    ]
    again = None
    if twins:
        # chance dealt out their samples one by one, so that these are the units, whatever belongs
        # together
        halves = signals.select(models=slice(1, None))
        again = judged(halves, suite(twins // 2 - 1), who=f"Of {twins} retrained models each")
        text.append(f"{again.text} No difference between train and test can explain this number.")
    return found._replace(text="\n".join(text), twins=again)


def _judged(
    signals: Signals,
    attacks: dict,
    *,
    names: tuple,
    groups: np.ndarray | None,
    n_resamples: int,
    seed: int,
    targets: list[int] | None = None,
    doubt: str = "",
    who: str = "The finished model",
    units: Units | None = None,
    calibrated: dict[str, Callable[[Scores], Scores]] | None = None,
) -> ModelAudit:
    """Attacks, negative control, table, verdict, groups and what to say of them.

    units: of one finished model, on which a permutation test decides; None: of several models,
    whose intervals decide. calibrated: {name: function of the loss threshold's scores} of attacks
    that non-members calibrate; they are shown and decide nothing, since their scores would change
    with the membership that a permutation deals out.
    """
    control = self_test(signals, attacks, n_resamples=REDRAWS, seed=seed)
    doubt = doubt or ("" if control.passed else FAILED)
    scores = {name: score(attack, signals, targets=targets) for name, attack in attacks.items()}
    labels = None if units is None else units.labels
    resampling = {"n_resamples": n_resamples, "seed": seed, "groups": labels}
    verdict = judge(limits(["auc>0.5"]), scores, doubt=doubt, **resampling)[0]
    shown_too = {name: ranked(scores["loss"]) for name, ranked in (calibrated or {}).items()}
    table = table_of(scores | shown_too, self_test=control, **resampling)
    first = next(iter(scores))
    audited = ~signals.population
    rate = _rate(scores[first], table, first)
    if units is None:
        sentences = [doubt, f"{who} {_finding(verdict, bool(doubt))}.", rate]
    else:
        means = compared_means(signals)
        verdict, decided, details = _decided(verdict, scores, means, units, doubt, seed)
        sentences = [doubt, f"{who} {details}.", decided, units.text, rate]
    split = partial(by_group, scores[first], n_resamples=n_resamples, seed=seed)
    by_class = split(signals.labels[audited], among=range(len(names)))
    return ModelAudit(
        text=" ".join(filter(None, sentences)),
        table=table,
        scores=scores | shown_too,
        by_class=by_class.rename(index=dict(enumerate(names))),
        by_group=None if groups is None else split(groups[audited], among=np.unique(groups)),
        verdict=verdict,
        self_test=control,
        signals=signals,
    )


def compared_means(signals: Signals) -> dict[str, np.ndarray]:
    """The values (N,) whose means of members and non-members are compared, of one model: log p of
    the true label, and by how much that exceeds what the model itself expects, sum_c p_c log p_c.

    How sure the model is differs from sample to sample and says little about membership, so that
    the difference from its own expectation varies less than the loss.
    """
    audited = ~signals.population
    log_p = log_p_of(signals.margin[0].mean(0)[audited])
    expected = -signals.entropy[0].mean(0)[audited]
    if np.isnan(expected).any():
        return {LOSS: log_p}
    return {LOSS: log_p, EXCESS: log_p - expected}


def _decided(
    verdict: Verdict,
    scores: dict[str, Scores],
    means: dict[str, np.ndarray],
    units: Units,
    doubt: str,
    seed: int,
) -> tuple[Verdict, str, str]:
    """(the verdict by the permutation test, what decided, what was found) of one finished model."""
    member = next(iter(scores.values())).member[0]
    values = {name: found.value[0] for name, found in scores.items()}
    evidence = membership_test(values, member, means=means, units=units.labels, seed=seed)
    leaks = evidence.p <= DECISIVE
    outcome = EXCEEDED if leaks else OPEN
    if doubt or (not leaks and verdict.outcome == BELOW):
        outcome = verdict.outcome
    verdict = verdict._replace(outcome=outcome, p=evidence.p, tail="")
    finding = _finding(verdict, bool(doubt), leaks)
    decided = decision_words(evidence)
    if leaks and evidence.part == "loss":
        values_compared = means[evidence.mean]
        gap = loss_gap(values_compared, member, units.labels)
        verdict = _of_part(verdict, "loss", 0.0, gap, evidence.mean)
        start, end = finding.split(": ", 1)
        finding = f"{start}: {loss_words(evidence.mean, values_compared, member, gap)}; {end}"
    if leaks and evidence.part == "tail":
        low, high = clopper_pearson(evidence.top_members, evidence.top)
        share = np.array([evidence.top_members / evidence.top, low, high])
        verdict = _of_part(verdict, "tail", float(member.mean()), share, evidence.tail_attack)
    if leaks and evidence.parts["tail"] <= DECISIVE:
        tail = tail_words(evidence, values[evidence.tail_attack], member)
        verdict = verdict._replace(tail=tail)
        if evidence.part == "tail":
            start, end = finding.split(": ", 1)
            finding = f"{start}: {tail}. Over all samples {end}"
    sentence = f"{verdict.limit}: {verdict.outcome}; {finding}. {decided}"
    return verdict._replace(sentence=sentence), decided, finding


def _of_part(
    verdict: Verdict, metric: str, threshold: float, ends: np.ndarray, attack: str
) -> Verdict:
    """The verdict with the numbers of what decided: the mean loss, or the largest scores."""
    value, low, high = map(float, ends)
    return verdict._replace(
        limit=f"{metric}>{threshold:g}",
        metric=metric,
        threshold=threshold,
        value=value,
        low=low,
        high=high,
        attack=attack,
    )


def _finding(verdict: Verdict, doubted: bool, leaks: bool | None = None) -> str:
    """The verdict in words, with its numbers. leaks: what decided where it was not the interval."""
    differs = verdict.low > 0.5 if leaks is None else leaks
    what = "treats train and test differently" if differs else FOUND[OPEN]
    return (
        f"{what if doubted else FOUND[verdict.outcome]}: the strongest of {verdict.attacks} attacks"
        f" ({in_words(verdict.attack)}) ranks a random member above a random non-member"
        f" with probability {verdict.value:.3f} [{verdict.low:.3f}, {verdict.high:.3f}], where"
        f" guessing gives 0.5 ({verdict.n1:,} members, {verdict.n0:,} non-members)"
    )


def _rate(scores: Scores, table: pd.DataFrame, attack: str) -> str:
    """The TPR of an attack at the smallest false positive rate that can be measured."""
    if not (rates := measurable_rates(scores)):
        return (
            f"What share is found at {RATE:.0%} false positives takes 100 non-members to measure."
        )
    name = in_words(attack)
    rate = rates[0]
    tpr, low, high = by_attack(table, "tpr", rate).loc[attack, ["value", "low", "high"]]
    if (floor := tied_floor(scores)) > rate:
        at = tpr_at(*scored(scores, 0), floor)
        return (
            f"Scores tie: the smallest rate of false positives that {name} can have is"
            f" {percent(floor)} ({at.fp:,} of {at.n0:,}), at which it finds {at.tpr:.1%}"
            f" [{at.low:.1%}, {at.high:.1%}] of members; no smaller rate exists."
        )
    return (
        f"At {percent(rate)} false positives {name} finds {tpr:.1%} of members"
        f" [{low:.1%}, {high:.1%}]; guessing finds {percent(rate)}."
    )


# --------------------------------------------------------------------------------------------------
# data and outputs


def _together(
    train, test, known: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray, np.ndarray]:
    """x and y of both, and who is a member; x is a table where both are.

    known: the classes of an estimator whose labels are not numbers from 0.
    """
    (x1, y1), (x0, y0) = _samples("train", train, known), _samples("test", test, known)
    tables = [isinstance(x, pd.DataFrame) for x in (x1, x0)]
    if all(tables):
        names = [*x1.columns]
        others = [*x0.columns]
        if len(names) != len(others) or {*names} != {*others} or len({*names}) < len(names):
            raise ValueError(
                f"columns of train are {shown(names)}, of test {shown(others)}; wanted the same"
                " ones, each once"
            )
        y = np.concatenate([y1, y0])
        # columns by their names, whatever their order
        both = pd.concat([x1, x0[names]], ignore_index=True)
        return both, y, np.arange(len(y)) < len(y1)
    x1 = numpy_of(x1)
    x0 = numpy_of(x0)
    if x1.shape[1:] != x0.shape[1:]:
        raise ValueError(
            f"samples of train have shape {x1.shape[1:]}, of test {x0.shape[1:]}; wanted one shape"
        )
    y = np.concatenate([y1, y0])
    return np.concatenate([x1, x0]), y, np.arange(len(y)) < len(y1)


def _copies(x: np.ndarray, y: np.ndarray, member: np.ndarray) -> str:
    """What to say where samples of test, with their labels, are in train too; "" where few are."""
    try:
        keys = [digest(*row) for row in zip(_comparable_rows(x), y.tolist(), strict=True)]
    except ValueError as error:
        return f"That no sample of test is in train too could not be checked ({error})."
    trained = {key for key, inside in zip(keys, member, strict=True) if inside}
    outside = [key for key, inside in zip(keys, member, strict=True) if not inside]
    shared = sum(key in trained for key in outside)
    finding = f"{shared:,} of {len(outside):,} samples of test are in train too, which hides a leak"
    if shared == len(outside):
        raise ValueError(f"{finding}; wanted samples that the model was not trained on")
    return f"{finding}: take them out of test." if shared >= COPIES * len(outside) else ""


def _comparable_rows(x) -> Iterable:
    """Samples in a form in which equal ones are equal, whatever types hold them."""
    if isinstance(x, pd.DataFrame):
        return ([_comparable(value) for value in row] for row in x.itertuples(index=False))
    return (_comparable(row) for row in x)


def _comparable(value):
    """A value in which 1, 1.0 and NumPy's 1 are one, 0 has no sign, and what is missing is None."""
    if hasattr(value, "detach"):
        value = numpy_of(value)
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "f":
            return np.where(np.isnan(value), np.nan, value + 0.0)
        if value.dtype.kind in "biucSU":
            return value
        return [value.shape, *(_comparable(entry) for entry in value.ravel().tolist())]
    if isinstance(value, list | tuple):
        return [_comparable(entry) for entry in value]
    if isinstance(value, dict):
        return {key: _comparable(entry) for key, entry in value.items()}
    if value is None or value is pd.NA or value is pd.NaT or value != value:  # NaN
        return None
    if isinstance(value, float) or (isinstance(value, int) and abs(value) <= EXACT):
        return float(value) + 0.0
    return value


def _samples(
    name: str, given, known: list | None = None
) -> tuple[np.ndarray | pd.DataFrame, np.ndarray]:
    """x (n, ...) as an array, or as the table that it is, and y (n,) as class numbers."""
    alone = isinstance(given, tuple | list) and len(given) == 2
    if not hasattr(given, "__getitem__") and hasattr(given, "dataset"):
        given = given.dataset  # of a DataLoader, in the order of the data set
    try:
        if alone:
            x, y = given
        else:
            x, y = zip(*(sample_of(given[i]) for i in range(len(given))), strict=True)
        x = x if isinstance(x, pd.DataFrame) else numpy_of(x)
        y = numpy_of(y)
    except Exception as error:
        raise ValueError(f"{name} cannot be read ({said(error, 120)}): {DATA}") from error
    if known is not None and y.shape in ((len(y),), (len(y), 1)):
        y = class_numbers(name, y, known)
    if y.dtype.kind not in "biuf":
        raise ValueError(
            f"{name} has labels {shown(y[:3].tolist())} ...; wanted class numbers from 0:"
            " np.unique(y, return_inverse=True)[1] of train and test together"
        )
    y = y[:, 0] if y.shape == (len(y), 1) else y
    if y.ndim != 1:
        raise ValueError(
            f"{name} has labels of shape {y.shape}; wanted (samples,) class numbers from 0"
        )
    if x.shape[:1] != y.shape:
        raise ValueError(f"{name} has {x.shape[:1]} samples and {y.shape} labels; wanted as many")
    return x, y


def _guard(x: np.ndarray | pd.DataFrame, y: np.ndarray, member: np.ndarray, seed: int):
    """The shift guard on raw inputs as vectors; of what is no numbers on the classes alone."""
    values = numpy_of(x)
    if values.dtype.kind not in "biuf":
        values = numbers_of(x)
    if values is None:
        guard = shift_guard(np.zeros((len(y), 1)), y, member, seed=seed)
        return guard._replace(note=guard.note.replace("inputs are equal", "inputs are no numbers"))
    finite = np.isfinite(values).all()
    return shift_guard(values if finite else without_extremes(values), y, member, seed=seed)


def _rows(x: np.ndarray | pd.DataFrame, which) -> np.ndarray | pd.DataFrame:
    """Some rows of an array or of a table."""
    return x.iloc[which] if isinstance(x, pd.DataFrame) else x[which]


def outputs(
    model,
    x: np.ndarray | pd.DataFrame,
    *,
    batch: int = 512,
    device=None,
    known: list | None = None,
) -> np.ndarray:
    """Logits (N, K) of a torch module or a function, one row per sample of x.

    Samples are queried in a random order, so that a batch tells nothing about who is a member. An
    estimator that was fitted on a table gets one, every other model arrays; `known` are the classes
    by which labels are numbered. Raises ValueError of one line where the model fails or gives other
    shapes.
    """
    x = x if wants_columns(model) else numpy_of(x)
    order = np.random.default_rng(0).permutation(len(x))
    with _queried(model, device, known) as query:
        cuts = range(0, len(x), batch)
        parts = [_batch_outputs(query, _rows(x, order[start : start + batch])) for start in cuts]
    return np.concatenate(parts)[np.argsort(order)]


def _batch_outputs(query: Callable, x: np.ndarray | pd.DataFrame) -> np.ndarray:
    """Logits of one batch."""
    try:
        output = query(x)
    except (Exception, SystemExit) as error:
        kind = getattr(x, "dtype", f"columns {shown([*getattr(x, 'columns', ())])}")
        raise ValueError(
            f"the model fails on a batch {x.shape} of {kind}: {said(error, 200)}"
        ) from error
    return logits_of(output, len(x))


@contextmanager
def _queried(model, device, known: list | None = None) -> Iterator[Callable]:
    """A function from NumPy batches to outputs; a module's modes are restored at the end."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(model, torch.nn.Module):
        query = estimator(model, known) or model
        if not callable(query):
            raise ValueError(f"model={shown(model)}: {MODEL}")
        yield query
        return
    modes = {part: part.training for part in model.modules()}
    weight = next(model.to(device).parameters(), torch.zeros(()))
    counts = [getattr(part, "timesteps", None) for part in model.modules()]
    steps = [count for count in counts if isinstance(count, int) and count > 1]

    def query(x):
        x = torch.as_tensor(x, device=weight.device)
        x = x.to(weight.dtype) if x.is_floating_point() else x
        # as many samples as time steps: a network that takes the first axis of events for time
        # would answer, with other numbers
        parts = [x[:1], x[1:]] if x.ndim == 5 and len(x) in steps else [x]
        answers = [model(part) for part in parts]
        if len(answers) == 1:
            return answers[0]
        return np.concatenate([logits_of(a, len(p)) for a, p in zip(answers, parts, strict=True)])

    try:
        with torch.inference_mode():
            model.eval()
            yield query
    finally:
        for part, training in modes.items():
            part.training = training


# --------------------------------------------------------------------------------------------------
# other models


def _given(references, samples: int, query: Callable) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(mask, logits) of each reference."""
    for one in references:
        if not (isinstance(one, tuple | list) and len(one) == 2):
            raise ValueError(f"references hold {shown(one)}; wanted (model, mask) of each")
        yield mask("the mask of a reference", numpy_of(one[1]), (samples,)), query(one[0])


def _retrained(
    retrain: Callable,
    x,
    y: np.ndarray,
    models: int,
    root: Path,
    seed: int,
    query: Callable,
    key: str | None = None,
) -> Iterable[tuple[np.ndarray, np.ndarray]]:
    """(mask, logits) of each model on a half, from the disk where they are there already."""
    from tqdm.auto import tqdm

    from mia_nb.data import paired_membership  # torch

    record = {"retrained": _training(retrain, key), "seed": seed, "models": models}
    record |= {"shape": [*x.shape]}
    content = store.content_key(record, digest(numpy_of(x)), digest(y))
    folder = store.open_folder(root, "signals", "retrained", content, record)
    member = paired_membership(models, len(y), labels=y, seed=seed)
    names = [f"logits_{m:03d}.npy" for m in range(models)]
    if not (all(map(folder.intact, names)) and store.has_signals(folder)):
        with folder.lock("retraining"):
            for m in tqdm(range(models), desc="retraining", unit="model", disable=None):
                if not folder.intact(names[m]):
                    made = _called(retrain, _rows(x, member[m]), y[member[m]], seed + m)
                    folder.write_array(names[m], query(made))
            if not store.has_signals(folder):  # `mia-nb list` calls it done then
                logits = np.stack([folder.read_array(name) for name in names])
                signals = Signals.from_logits(logits, y, member)
                for m in range(models):
                    store.keep_partial(folder, m, signals.select(models=[m]))
                design = {"labels": y, "member": member, "population": signals.population}
                store.join_partial(folder, [*range(models)], design, {"draws": "plain"}, None)
    return zip(member, [folder.read_array(name) for name in names], strict=True)


def _called(retrain: Callable, x, y: np.ndarray, seed: int):
    """The model of one call of the user's training function; what it raises is said in a line,
    chained to its own traceback.
    """
    try:
        return retrain(x, y, seed)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"retrain(images, labels, seed) fails on {len(y)} samples with seed {seed}:"
            f" {said(error, 200)}"
        ) from error


def _training(function: Callable, key: str | None) -> str:
    """What a training function is recognised by: the name that was given, or all that it computes
    with.
    """
    if key is not None:
        return f"key {key}"
    try:
        return digest_of_function(function)
    except ValueError as error:
        raise ValueError(
            f"retrain={shown(function)}: {error}; so a change of it would go unnoticed: pass"
            ' key="a name that changes when the training does"'
        ) from None


@checked
def plan(
    samples: Positive,
    models: Whole,
    *,
    labels: Array | None = None,
    seed: Count = 0,
    out: PathLike = "plan.npz",
) -> Path:
    """Masks for trainings elsewhere, in complementary halves: model m is to be trained on
    `np.flatnonzero(np.load(out)["member"][m])`.

    Parameters:
        samples: how many there are to train on and to be audited.
        models: an even number from 2 up.
        labels: (samples,), for halves of every class; None: halves of all.
        seed: of the draw.
        out: .npz that is written: member (models, samples), split.

    Returns: the path. Raises ValueError for an odd number of models, or fewer than two samples.
    """
    from mia_nb.data import paired_membership  # torch

    member = paired_membership(models, samples, labels=labels, seed=seed)
    return _written(out, {"member": member, "split": np.array("pairs")})


@checked
def collect(
    plan: Anything, logits: Anything, labels: Array, *, out: PathLike = "outputs.npz"
) -> Path:
    """Gathers what models trained elsewhere put out into the .npz that `read_outputs`, notebook 07
    and `mia-nb audit --logits` read.

    Parameters:
        plan: the .npz of `plan`, or masks (M, N) of your own.
        logits: one entry per model, in the order of the masks: (N, K), all samples in the order of
            the plan, members or not; or a .npy, an .npz with `logits`, or a .csv or .tsv.
        labels: (N,) class numbers from 0, or a .npy, an .npz with `labels`, or a .csv or .tsv with
            a column label.
        out: .npz that is written.

    Returns: the path. Raises ValueError of one line for files that cannot be read, another number
    of models or samples, and all that `read_outputs` refuses; then nothing is written.
    """
    masks = {"member": plan}
    if isinstance(plan, str | os.PathLike):
        masks = npz_arrays(Path(plan), ("member", "split"))[0]
    member = mask("member of the plan", masks.get("member", ()))
    given = [array_in("logits", one) for one in logits]
    shapes = {one.shape for one in given}
    if member.ndim != 2:
        raise ValueError(f"the plan has masks of shape {member.shape}; wanted (models, samples)")
    if len(given) != len(member):
        raise ValueError(
            f"there are logits of {len(given)} models and {len(member)} masks; wanted one of each,"
            " in the order of the plan"
        )
    if len(shapes) > 1:
        raise ValueError(f"the models' logits have shapes {sorted(shapes)}; wanted one shape")
    arrays = masks | {"logits": np.stack(given), "labels": array_in("labels", labels)}
    outputs_from(arrays, "collected", "")
    return _written(out, arrays)


def _written(out: str | Path, arrays: dict[str, np.ndarray]) -> Path:
    path = Path(out)  # the very name, whatever its suffix
    # a device or pipe that was asked for is written to; anything else becomes a new file
    special = path.exists() and not path.is_file()
    with open(path, "wb") if special else replacing(path) as file:
        np.savez(file, **arrays)
    return path


def array_in(name: str, given) -> np.ndarray:
    """An array as it is given, or the one in a .npy, or under this name in an .npz, or in a .csv or
    .tsv (`readers.table_in`).
    """
    if not isinstance(given, str | os.PathLike):
        return numpy_of(given)
    wanted = f"{given}: wanted .npy, or .npz, .csv or .tsv with {name}"
    if not Path(given).is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{wanted}; there is no such file")
    if Path(given).suffix.lower() in SEPARATORS:
        arrays = table_in(given)
        if name not in arrays:
            held = "a column of numbers for each class" if name == "logits" else "a line of names"
            raise ValueError(f"{wanted}; there is no such column: wanted {held}")
        return arrays[name]
    try:
        there = np.load(given, allow_pickle=False)
        return there if isinstance(there, np.ndarray) else there[name]
    except Exception as error:
        raise ValueError(f"{wanted} ({said(error, 120)})") from error
