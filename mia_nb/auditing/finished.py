"""The audit of one finished model: alone, with references that its owner has, or with twins that
its owner's training function makes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from mia_nb.arguments import Anything, Array, Count, PathLike, Positive, Rates, Several, Whole
from mia_nb.attacks import score, suite
from mia_nb.auditing.alone import ALONE, ranked_among_others
from mia_nb.auditing.decision import decided_by_permutation
from mia_nb.auditing.dependence import Units, resampling_units
from mia_nb.auditing.gate import judge
from mia_nb.auditing.limits import limits
from mia_nb.auditing.model_audit import ModelAudit
from mia_nb.auditing.model_outputs import named_classes, outputs, wants_columns
from mia_nb.auditing.outputs import Outputs, outputs_from, read_outputs
from mia_nb.auditing.raw_inputs import raw_inputs_guard, samples_on_both_sides
from mia_nb.auditing.samples import both_sides, numpy_of, reads_differ, rows_of
from mia_nb.auditing.sentences import (
    AUGMENTED,
    EXCEEDED,
    FAILED,
    RATE,
    TWINS,
    UNTESTED,
    VARIES,
    finding_words,
    rate_words,
    threshold_words,
)
from mia_nb.auditing.shift import DOUBT, LEVEL, ShiftGuard, comparable
from mia_nb.auditing.twins import given_references, retrained_models
from mia_nb.checks import checked, shown
from mia_nb.metrics import by_group, self_test, summary
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.groups import largest_contribution
from mia_nb.metrics.pairs import same_or_complement
from mia_nb.metrics.sentences import WHAT_LOWERS
from mia_nb.metrics.targets import FPR
from mia_nb.types import Scores, Signals

REDRAWS = 50  # masks redrawn for the negative control
DRAWN = (
    "That chance drew these, and that they were trained like the finished one is assumed: check it."
)
TRAINED_ALIKE = "That they were trained like the finished one is assumed: check it."
NO_DIFFERENCE = "No difference between train and test can explain this number."


class AuditOptions(NamedTuple):
    """The options of all parts of an audit."""

    names: tuple[str, ...]  # of the classes
    groups: np.ndarray | None  # of samples, to be shown
    units: Units  # of samples that are drawn together
    doubt: str  # why nothing is concluded, besides the doubt of `units`; "" if something can be
    n_resamples: int
    seed: int
    redraws: int
    fpr: tuple[float, ...] = ()  # further rates at which the table gives the TPR


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
    batch: Positive = 512,
    device: Anything | None = None,
    seed: Count = 0,
    classes: Array | None = None,
    groups: Array | None = None,
    n_resamples: Several = RESAMPLES,
) -> ModelAudit:
    """Does this finished model give away which samples it was trained on?

    Parameters:
        model: a torch module (queried in evaluation mode, its own mode restored), or a function
            from a batch, NumPy slices of `train` and `test`, to logits (batch, classes), or an
            estimator of scikit-learn. One that was fitted on a table gets tables.
        train: (x, y), samples that the model was trained on and their class numbers from 0, or the
            labels that an estimator has in `classes_`; arrays, tensors, tables, or a data set that
            gives (x, y) by number, without random augmentation.
        test: the same for samples that it never saw, from the same source.
        references: [(model, mask)] of one further model or more, each trained on a random choice
            of the samples of `train` and `test`, which mask (n_train + n_test,) marks.
        retrain: your training function, retrain(images, labels, seed) -> model, of NumPy arrays (a
            table where `model` gets tables) and class numbers from 0. It is called for `models`
            complementary random halves of `train` and `test` together. Outputs are stored under
            `root`, so that a killed run goes on. Their key is the data, the seed, the number of
            models, and everything that `retrain` computes with (`digests.digest_of_function`):
            another closure, default or global is another training.
        key: a name of this training, in place of what `retrain` computes with; change it whenever
            the training changes. It is needed where `retrain` uses objects that cannot be compared
            (a connection, a lock) or that change by themselves (a list that it appends to).
        models: how many are retrained, an even number from 4 up; 4 models, which are two pairs,
            only serve as references.
        root: folder of results.
        batch: samples in one call of the model.
        device: where a torch module is moved; None: it stays where it is.
        seed: of every draw.
        classes: (K,) names; None: their numbers.
        groups: (n_train + n_test,) labels, for results by group beside those by class. Where each
            group is wholly in train or in test, its samples (a patient's images) are permuted
            together.
        n_resamples: resamples of the bootstrap.

    Returns:
        A `ModelAudit`; print it, or let a notebook show it.

    First `shift_guard` compares the raw inputs: where it can tell the two sides apart, so can
    attacks, whatever was memorised. Loss, correctness and entropies are judged on all samples;
    attack_p and a threshold are calibrated on samples of `test`, each half by the other. With other
    models, the `suite` for their number is run. Retrained models are also targets in turn, in
    `twins`: their halves are random, so no difference of `train` and `test` plays a part there.

    The audit says that members are given away where one permutation test of all attacks' ranks, the
    mean loss (and the loss minus the model's expectation of it) and the largest scores gives
    p <= .025 (`metrics.permutation`). The test is whether members and non-members are exchangeable:
    a model without a leak is accused in at most 2.5 % of audits, even with 12 samples a side, if
    samples are independent of each other. Where `groups` lie wholly in train or in test, groups are
    permuted, not samples. Without `groups` two signs of dependence are checked: consecutive samples
    with similar losses are put into blocks; where nearest neighbours among the inputs share their
    side too often, nothing is concluded. Neither finds every dependence. The halves of retrained
    models were drawn sample by sample, so that dependent samples do no harm in `twins`.

    Raises:
        ValueError: for probabilities instead of logits, a model that fails or gives other shapes,
            and masks and labels that do not fit.

    Caveat: files and environment variables that `retrain` reads are not seen; name them in `key`.

    Example:
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
    _refuse_options(references, retrain, key, models)
    estimator_classes = named_classes(model)
    samples, y, member = both_sides(train, test, estimator_classes)
    x = numpy_of(samples)
    groups = _labels_of_groups(groups, y.shape)
    shift = raw_inputs_guard(samples, y, member, seed)
    query = partial(outputs, batch=batch, device=device, estimator_classes=estimator_classes)
    logits = query(model, samples)
    arrays = {"logits": logits[None], "labels": y, "member": member[None]}
    if classes is None:
        classes = estimator_classes
    if classes is not None:
        arrays["classes"] = np.asarray(classes, str)
    # outputs are checked before anything is trained
    finished = outputs_from(arrays, "finished", "")
    signals = finished.signals

    remarks = list(signals.info["remarks"])
    augmented = [name for name, side in (("train", train), ("test", test)) if reads_differ(side)]
    if augmented:
        remarks.append(AUGMENTED.format(" and ".join(augmented)))
    on_both_sides = samples_on_both_sides(x, y, member)
    if on_both_sides:
        remarks.append(on_both_sides)
    if _varies(partial(query, model), samples, logits, batch):
        remarks.append(VARIES)
    doubt = ""
    if math.isnan(shift.auc) and shift.classes_p >= LEVEL:
        remarks.append(UNTESTED)
    elif not shift.passed:
        doubt = f"{DOUBT}: {shift.note}."

    options = AuditOptions(
        names=finished.classes,
        groups=groups,
        units=resampling_units(signals, groups=groups, x=x, seed=seed),
        doubt=doubt,
        n_resamples=n_resamples,
        seed=seed,
        redraws=REDRAWS,
    )
    query_all = partial(query, x=samples)
    if references is not None:
        others = given_references(references, len(y), query_all)
        audit, comparison = _compared(arrays, others, options)
        notes = [f"{comparison} {DRAWN}"]
    elif retrain is not None:
        inputs = samples if wants_columns(model) else x
        others = retrained_models(retrain, inputs, y, models, Path(root), seed, query_all, key)
        audit, comparison = _compared(arrays, others, options)
        retrained = audit.signals.select(models=slice(1, None))
        twins = _each_in_turn(retrained, options)
        audit = audit._replace(twins=twins)
        notes = [f"{comparison} {TRAINED_ALIKE}", f"{twins.text} {NO_DIFFERENCE}"]
    else:
        audit, notes = _alone(signals, options)
    return _in_full(audit, shift, before=remarks, after=notes)


def _varies(
    query: Callable, samples: np.ndarray | pd.DataFrame, logits: np.ndarray, batch: int
) -> bool:
    """Whether a second query of some samples, in another batch, gives other outputs than the first,
    `logits` of all samples.
    """
    some = slice(max(min(batch, len(samples)) // 2, 1))
    again = query(rows_of(samples, some))
    return not np.isclose(again, logits[some], rtol=0.01, atol=0.01).all()


def _refuse_options(references: object, retrain: object, key: str | None, models: int) -> None:
    """ValueError for options of `audit_model` that are impossible or do not go together."""
    if references is not None and retrain is not None:
        raise ValueError("references and retrain were both given; give one")
    if retrain is not None and not callable(retrain):
        raise ValueError(
            f"retrain={shown(retrain)}: wanted a function (images, labels, seed) -> model"
        )
    if models < 4 or models % 2:
        raise ValueError(
            f"models={models}: wanted an even number from 4 up, for complementary halves"
        )
    if key is not None and retrain is None:
        raise ValueError(f"key={shown(key)} names what retrain does; leave it out without retrain")
    if key == "":
        raise ValueError('key="": wanted a name of the training, or none')


@checked
def audit_outputs(
    given: Anything,
    *,
    groups: Array | None = None,
    fpr: Rates = (),
    n_resamples: Several = RESAMPLES,
    redraws: Several = REDRAWS,
    seed: Count = 0,
) -> ModelAudit:
    """The audit of one finished model from its outputs alone.

    Parameters:
        given: result of `read_outputs` for one model, or the path of a file for it.
        groups: (N,) labels of the audited samples, as for `audit_model`.
        fpr: further false positive rates at which the table gives the TPR.
        n_resamples: resamples of the bootstrap.
        redraws: masks redrawn for the negative control.
        seed: of every draw.

    Returns:
        A `ModelAudit`, decided as by `audit_model`. Where neither images nor a declared split show
        that members were drawn at random, nothing is concluded (`comparable`).

    Raises:
        ValueError: for outputs of several models, whatever `read_outputs` refuses, and groups that
            do not have one label for each sample.
    """
    contents = given if isinstance(given, Outputs) else read_outputs(given)
    models = len(contents.signals.margin)
    if models != 1:
        raise ValueError(
            f"outputs of {models} models: wanted those of one; several are audited by"
            " mia-nb audit --logits or notebook 07"
        )
    audited = ~contents.signals.population
    signals = contents.signals.select(samples=np.flatnonzero(audited))
    member = signals.member[0]
    groups = _labels_of_groups(groups, member.shape)
    images = None
    shift = None
    if contents.images is not None:
        images = contents.images[audited]
        shift = raw_inputs_guard(images, signals.labels, member, seed)
    facts = comparable(signals, shift=shift)
    options = AuditOptions(
        names=contents.classes,
        groups=groups,
        units=resampling_units(signals, groups=groups, x=images, seed=seed),
        doubt=facts["doubt"],
        n_resamples=n_resamples,
        seed=seed,
        fpr=tuple(np.atleast_1d(fpr)),
        redraws=redraws,
    )
    audit, notes = _alone(signals, options)
    return _in_full(audit, shift, before=[*facts["remarks"], facts["assumed"]], after=notes)


def _labels_of_groups(groups: object, shape: tuple[int]) -> np.ndarray | None:
    """Groups as an array of one label per sample."""
    if groups is None:
        return None
    groups = numpy_of(groups)
    if groups.dtype == object:  # numbers and text do not compare
        groups = groups.astype(str)
    if groups.shape != shape:
        raise ValueError(f"groups have shape {groups.shape}; wanted {shape}, a label per sample")
    return groups


def _in_full(
    audit: ModelAudit, shift: ShiftGuard | None, *, before: list[str], after: list[str]
) -> ModelAudit:
    """The audit with notes to read before its numbers and notes to read after them."""
    before = [*filter(None, before)]
    lines = [*before, audit.text, *after, largest_contribution(audit.by_class, "classes")]
    if audit.by_group is not None:
        lines.append(largest_contribution(audit.by_group, "groups"))
    if audit.verdict.outcome == EXCEEDED:
        lines.append(WHAT_LOWERS)
    text = "\n".join(filter(None, lines))
    return audit._replace(shift=shift, text=text, remarks=tuple(before))


def _alone(signals: Signals, options: AuditOptions) -> tuple[ModelAudit, list[str]]:
    """The audit by attacks that need no other model, and notes to read after its numbers."""
    loss = score(ALONE["loss"], signals)
    # attack_p is calibrated on non-members, so its scores would change when membership is permuted:
    # it is shown and decides nothing
    ranked = ranked_among_others(loss, options.units.labels, options.seed)
    audit = _judged(signals, ALONE, options, shown_too={"attack_p": ranked})
    called = 1 - ranked.value[0] <= RATE
    threshold = threshold_words(called, ranked.member[0], options.units.labels)
    return audit, [threshold, TWINS]


def _compared(
    arrays: dict, others: Iterable[tuple], options: AuditOptions
) -> tuple[ModelAudit, str]:
    """The audit with other models, (mask, logits) of each, as references, and a sentence on what
    the audited one was compared with.

    arrays: logits, labels and mask of the audited model, as `outputs_from` takes them.
    """
    others = list(others)
    if not others:
        raise ValueError("references=[]: wanted (model, mask) of one or more, or None")
    masks, logits = zip(*others, strict=True)
    # those of the finished model's own split serve as no references
    same_split = same_or_complement(np.stack(masks), arrays["member"][0])
    if same_split.all():
        raise ValueError(
            f"each of the {len(masks)} references was trained on exactly the samples of train, or"
            " of test; wanted random choices of both (mia-nb plan draws such masks)"
        )
    compared = np.stack(masks)[~same_split]
    count = len(compared)
    trained = compared.sum(0)  # how many references were trained on each sample
    k = int(np.median(np.minimum(trained, count - trained)))
    if not k:
        raise ValueError(
            f"the {count} references leave most samples without a model on one side; wanted some"
            " trained with and some without each sample (mia-nb plan draws such masks)"
        )
    of_all = arrays | {
        "member": np.stack([*arrays["member"], *masks]),
        "logits": np.stack([*arrays["logits"], *logits]),
    }
    signals = outputs_from(of_all, "finished", "").signals
    audit = _judged(signals, suite(k), options, targets=[0])
    comparison = (
        f"Compared with {count} models trained on {compared.sum(1).mean():,.0f} samples each of"
        f" train and test ({k} with and {k} without the typical sample; the finished model was"
        f" trained on {arrays['member'].sum():,})."
    )
    return audit, comparison


def _each_in_turn(retrained: Signals, options: AuditOptions) -> ModelAudit:
    """The audit of models retrained on complementary halves, each a target in turn."""
    models = len(retrained.member)
    # their members were drawn sample by sample, so samples are the units, whatever the groups
    options = options._replace(units=Units(None, ""), doubt="")
    who = f"Of {models} retrained models each"
    return _judged(retrained, suite(models // 2 - 1), options, who=who)


def _judged(
    signals: Signals,
    attacks: dict,
    options: AuditOptions,
    *,
    targets: list[int] | None = None,
    who: str = "The finished model",
    shown_too: dict[str, Scores] | None = None,
) -> ModelAudit:
    """The audit of signals by attacks: negative control, table, verdict, groups and sentences.

    A permutation test decides about one target, the interval of the AUC about several.

    Parameters:
        signals: of all models.
        attacks: {name: attack}.
        options: of all parts of the audit.
        targets: rows of the models that are audited; None: all.
        who: the audited models, as the subject of a sentence.
        shown_too: scores that are in the table and decide nothing.
    """
    units = options.units.labels
    control = self_test(signals, attacks, n_resamples=options.redraws, seed=options.seed)
    doubt = options.doubt or options.units.doubt
    if not doubt and not control.passed:
        doubt = FAILED
    resampling = {"n_resamples": options.n_resamples, "seed": options.seed, "groups": units}

    tried = {name: score(attack, signals, targets=targets) for name, attack in attacks.items()}
    first, first_scores = next(iter(tried.items()))
    scores = tried | (shown_too or {})
    if len(first_scores.value) > 1:
        verdict = judge(limits(["auc>0.5"]), tried, doubt=doubt, **resampling)[0]
        finding = finding_words(verdict, bool(doubt))
        details = []
    else:
        verdict, finding, decided = decided_by_permutation(
            tried,
            signals,
            units=units,
            doubt=doubt,
            n_resamples=options.n_resamples,
            seed=options.seed,
        )
        details = [decided, options.units.text]
    table = summary(scores, sorted({*FPR, *options.fpr}), self_test=control, **resampling)
    details.append(rate_words(first_scores, table, first))
    headline = " ".join(filter(None, [doubt, f"{who} {finding}."]))

    by_label = partial(by_group, first_scores, n_resamples=options.n_resamples, seed=options.seed)
    audited = ~signals.population
    by_class = by_label(signals.labels[audited], among=range(len(options.names)))
    of_groups = None
    if options.groups is not None:
        of_groups = by_label(options.groups[audited], among=np.unique(options.groups))
    return ModelAudit(
        headline=headline,
        text=" ".join(filter(None, [headline, *details])),
        table=table,
        scores=scores,
        by_class=by_class.rename(index=dict(enumerate(options.names))),
        by_group=of_groups,
        verdict=verdict,
        self_test=control,
        signals=signals,
        decided_by=tuple(tried),
        doubt=doubt,
        units=units,
        n_resamples=options.n_resamples,
        seed=options.seed,
    )
