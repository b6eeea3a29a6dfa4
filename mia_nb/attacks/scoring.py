"""Scoring every target in turn with the references that its design allows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import numpy as np

from mia_nb.arguments import Anything, Flag, Rows
from mia_nb.attacks.flags import designs_of, flag_of_unscored, flags_of, texts_of
from mia_nb.attacks.inputs import combination
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.likelihood import lira, nig
from mia_nb.attacks.margins import log_p, over_queries
from mia_nb.attacks.reading import JOINT, select_lazily
from mia_nb.attacks.reference import attack_r, base, rmia, watson
from mia_nb.attacks.registry import Attack, find, function_and_options
from mia_nb.attacks.single import attack_p, loss, vote
from mia_nb.attacks.smooth import lira_smooth, releases
from mia_nb.attacks.summaries import Summary, confidences_of, left_out, worlds_of
from mia_nb.attacks.tuned import Tuned, rmia_tuned, tuned_outside
from mia_nb.checks import checked, row_numbers, shown
from mia_nb.types import Scores, Signals, pair_ids

# attacks that read their references block by block
READS_BLOCKS = (
    loss,
    attack_p,
    vote,
    attack_r,
    watson,
    rmia,
    base,
    lira,
    lira_smooth,
    nig,
    releases,
    rmia_tuned,
)
# attacks that read summaries of their references, computed once for all targets: means and
# variances, or confidences
READS_WORLDS = (attack_r, lira, lira_smooth, nig)
READS_CONFIDENCES = (rmia, base)
TUNING_OPTIONS = ("temperatures", "combine", "seed")  # of rmia_tuned, for its choice


@checked
def score(
    attack: Anything,
    target: Signals,
    references: Signals | None = None,
    *,
    targets: Rows | None = None,
    keep_complement: Flag = False,
) -> Scores:
    """One attack on every target model in turn.

    Parameters:
        attack: a name of ATTACKS, or a function (target, references, **options) -> scores (N,).
        target: signals of the targets, membership included.
        references: signals of the models that references are taken from; None: the target's own.
        targets: rows of the targets; None: all.
        keep_complement: whether models complementary to the target stay among its references, which
            leaks the design; those with its own mask never do.

    Returns:
        Scores, (targets, audited samples), larger = more likely a member; `info["flags"]` lists
        reasons to doubt them.

    Raises:
        ValueError: for an unknown attack, hidden membership, references that saw no or every
            audited sample, margins that are not finite, and target and references that differ in
            samples or labels (only shokri and song_mittal learn from other samples).

    A model is no reference, whichever pool it is in, if its mask is the target's or exactly the
    complement of it. Masks are compared on the audited samples, without those that all models saw.
    With no reference left the attack gets references=None. The attack sees all samples; Scores hold
    the audited ones alone. Samples that lack a side (Bernoulli designs) score NaN, and a flag
    counts them. Other flags are the attack's warnings, outputs after every time step, and targets
    and references that are on different scales or were queried differently.

    References are read block by block, so that memory beyond them hardly grows with their number;
    shokri, song_mittal and functions of your own get a copy for each target (also of the target, so
    that an attack may write into its signals), rmia_tuned gets a copy of the samples
    that it chooses a temperature on. rmia, rmia_tuned, base, attack_r, lira, lira_smooth and nig
    read the models once for all targets (`summaries.left_out`): where M models are references of
    each other, about M log M models are read, not M^2. Medians and joint forms read all references
    of each target.

    Example:
        scores = score("rmia", signals)
    """
    name, function = find(attack)
    pool = target if references is None else references
    # arrays may have been changed since they were checked
    target.check_complete()
    if pool is not target:
        pool.check_complete()
    audited = ~target.population
    targets = row_numbers("targets", targets, target.shape[0])
    plain, options = function_and_options(function)
    unit, held_out, disjoint = _units(plain, target, pool, targets, keep_complement)
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        value = _values(name, function, target, pool, targets, unit, held_out)
    reference_rows = [np.flatnonzero(unit != number) for number in held_out]
    designs = designs_of(pool, reference_rows)
    flags = flags_of(target, pool, designs, keep_complement, texts_of(raised))
    missing = np.isnan(value)
    if missing.any():
        flags.append(flag_of_unscored(missing, pool, reference_rows, audited))
    accuracy, loss = _by_membership(target, targets, audited)
    attack_name = getattr(plain, "__name__", name)
    info = {
        "attack": name,
        "options": options,
        "k": min((k for k, _ in designs), default=0),
        "queries": target.shape[1],
        "draws": target.query_kind,
        "combine": combination(attack_name, target.query_kind, options.get("combine")),
        "keys": {"target": target.info.get("pool"), "references": pool.info.get("pool")},
        "disjoint": references is not None and disjoint,
        "flags": flags,
    }
    if "split" in target.info:
        info["split"] = target.info["split"]
    member = target.member[targets]
    return Scores(
        value=value,
        member=member[:, audited],
        targets=targets,
        pair=pair_ids(member[:, audited & ~target.member.all(0)]),
        accuracy=accuracy,
        loss=loss,
        info=info,
    )


def _values(
    name: str,
    function: Attack,
    target: Signals,
    pool: Signals,
    targets: np.ndarray,
    unit: np.ndarray,
    held_out: np.ndarray,
) -> np.ndarray:
    """(targets, audited samples) scores. A target's references are the models of the pool outside
    the unit that is held out for it.
    """
    plain, options = function_and_options(function)
    parameters = inspect.signature(plain).parameters
    tolerant = {}  # options by which a design with gaps gets a flag instead of an error
    for option, value in (("missing", "nan"), ("allow_unequal", True)):
        if option in parameters and option not in options:
            tolerant[option] = value
    reads_blocks = plain in READS_BLOCKS
    audited = ~target.population
    values = np.empty((len(targets), audited.sum()))
    summaries = _summaries(plain, options, target.query_kind, pool, unit, set(held_out))
    for number, summary in summaries:
        rows = np.flatnonzero(unit != number)
        references = select_lazily(pool, rows) if len(rows) and reads_blocks else None
        arguments = tolerant if summary is None else tolerant | {"summary": summary}
        for row in np.flatnonzero(held_out == number):
            t = targets[row]
            hidden_target = target.select(models=slice(t, t + 1)).hide()
            if not reads_blocks:
                # functions of a user's, which may write into what they are given
                hidden_target = _copy_of_models(target, targets[[row]]).hide()
                references = _copy_of_models(pool, rows) if len(rows) else None
            scores = _scores_of_target(function, name, hidden_target, references, arguments)
            values[row] = scores[audited]
    return values


def _copy_of_models(signals: Signals, models: np.ndarray) -> Signals:
    """Signals of the models of these rows, none of whose arrays are shared with the signals."""
    chosen = signals.select(models=models)  # copies what has an axis of models
    return replace(chosen, labels=chosen.labels.copy(), population=chosen.population.copy())


def _scores_of_target(
    function: Callable, name: str, target: Signals, references: Signals | None, options: dict
) -> np.ndarray:
    """(N,) scores of one target; ValueError for an attack that gives no real number for each
    sample.
    """
    scores = function(target, references, **options)
    if isinstance(scores, np.ma.MaskedArray):
        raise ValueError(f"attack {shown(name)} gives a masked array; wanted plain numbers")
    values = np.asarray(scores)
    samples = target.shape[2]
    if values.shape != (samples,) or values.dtype.kind not in "biuf":
        raise ValueError(
            f"attack {shown(name)} gives {values.shape} {values.dtype}; wanted a real number for"
            f" each of {samples} samples"
        )
    return values


def _summaries(
    plain: Callable,
    options: dict,
    query_kind: str,
    pool: Signals,
    unit: np.ndarray,
    held_out: set[int],
) -> Iterator[tuple[int, Summary | Tuned | None]]:
    """For each unit that is held out, its number and the summary of all other models; None for
    attacks that read their references themselves.
    """
    if plain is rmia_tuned:
        choice = {name: value for name, value in options.items() if name in TUNING_OPTIONS}
        return tuned_outside(pool, unit, held_out, **choice)
    summarise = _summary_function(plain, options, query_kind)
    if summarise is None:
        return ((number, None) for number in sorted(held_out))

    def summary_of(rows: np.ndarray) -> Summary:
        return summarise(select_lazily(pool, rows))

    return left_out(unit, held_out, summary_of)


def _summary_function(
    plain: Callable, options: dict, query_kind: str
) -> Callable[[Signals], Summary] | None:
    """The function that makes of references the summary that an attack reads; None for attacks that
    read their references themselves.
    """
    if plain is releases:
        return partial(worlds_of, combine="llr")
    name = getattr(plain, "__name__", "")
    combine = combination(name, query_kind, options.get("combine"))
    if plain in READS_WORLDS and combine not in JOINT:
        return partial(worlds_of, combine=combine)
    if plain in READS_CONFIDENCES:
        if options.get("form") == "vote":  # which keeps queries apart
            combine = "llr"
        return partial(confidences_of, combine=combine)
    return None


def _units(
    plain: Callable, target: Signals, pool: Signals, targets: np.ndarray, keep_complement: bool
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Which models of the pool are held out from the references of each target.

    Masks are compared without population samples, and without samples that all models saw (with
    canaries, all but these).

    Returns:
        unit: (M,) number of the unit of each model of the pool. Models of one unit are held out
            together: they have the same members or, unless complements are kept, complementary
            ones.
        held_out: (targets,) number of the unit held out for each target; -1 for none.
        disjoint: whether no model of the pool has a target's members or exactly the others.
    """
    same_samples = _check_samples(plain, target, pool)
    audited_by_targets = ~target.population
    audited_by_pool = audited_by_targets if same_samples else ~pool.population
    target_masks = target.member[:, audited_by_targets]
    pool_masks = pool.member[:, audited_by_pool]
    models = len(pool_masks)
    unit = np.zeros(models, int)
    held_out = np.full(len(targets), -1)
    disjoint = True
    if target_masks.shape[1] == pool_masks.shape[1]:
        seen_by_all = target_masks.all(0) & pool_masks.all(0)
        masks = np.vstack([pool_masks, target_masks[targets]])[:, ~seen_by_all]
        pair = pair_ids(masks)
        disjoint = not np.isin(pair[models:], pair[:models]).any()
        if same_samples:
            group = pair
            if keep_complement:
                # each mask of a pair is a group of its own; they differ in every sample
                group = 2 * pair + masks[:, :1].any(1)
            unit, held_out = _numbered(group[:models], group[models:])
    _check_references(pool_masks, unit, held_out)
    return unit, held_out, disjoint


def _numbered(
    group_of_model: np.ndarray, group_of_target: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The groups of models, numbered from 0 without gaps, and for each target the number of its
    group; -1 where no model is in it.
    """
    groups, unit = np.unique(group_of_model, return_inverse=True)
    held_out = np.full(len(group_of_target), -1)
    has_models = np.isin(group_of_target, groups)
    held_out[has_models] = np.searchsorted(groups, group_of_target[has_models])
    return unit, held_out


def _check_samples(plain: Callable, target: Signals, pool: Signals) -> bool:
    """Whether targets and references were queried on the same samples; ValueError if not and the
    attack needs that, or if a membership is hidden.
    """
    if target.member is None or pool.member is None:
        raise ValueError(
            "score needs the membership of targets and references, but member is None: score it"
            " with the full signals"
        )
    same_samples = np.array_equal(target.labels, pool.labels)
    if not same_samples and plain not in (shokri, song_mittal):
        raise ValueError(
            f"target ({target.labels.size} samples) and references ({pool.labels.size}) differ"
            " in samples or labels: query both on the same images (only shokri and song_mittal"
            " learn from other samples)"
        )
    return same_samples


def _check_references(masks: np.ndarray, unit: np.ndarray, held_out: np.ndarray) -> None:
    """ValueError if a target has a reference that saw none or all of the audited samples.

    Parameters:
        masks: (M, N) of the models of the pool.
        unit, held_out: as `_units` returns them.
    """
    blind = [m for m, seen in enumerate(masks) if seen.all() or not seen.any()]
    if any((unit[blind] != number).any() for number in held_out):
        raise ValueError(
            f"reference models {blind} saw none or all of the audited samples: they tell nothing,"
            " leave them out"
        )


def _by_membership(
    target: Signals, targets: np.ndarray, audited: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and mean loss of each target, (targets, 2): on members, on non-members. The loss is
    NaN for aligned margins.
    """
    accuracy = np.full((len(targets), 2), np.nan)
    mean_loss = np.full((len(targets), 2), np.nan)
    for row, t in enumerate(targets):
        correct = over_queries(target.correct[[t]], target.query_kind)[0]
        losses = over_queries(-log_p(target.margin[[t]]), target.query_kind)[0]
        member = target.member[t]
        for column, side in enumerate((member & audited, ~member & audited)):
            if side.any():
                accuracy[row, column] = correct[side].mean()
                mean_loss[row, column] = losses[side].mean()
    if "align" in target.info:
        mean_loss[:] = np.nan
    return accuracy, mean_loss
