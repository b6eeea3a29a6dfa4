"""Every target in turn against the references that its design allows."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from mia_nb.arguments import Anything, Flag, Rows, Whole
from mia_nb.attacks.inputs import combination
from mia_nb.attacks.learned import shokri, song_mittal
from mia_nb.attacks.likelihood import lira, nig
from mia_nb.attacks.margins import log_p, over_queries
from mia_nb.attacks.reading import JOINT, select_lazily
from mia_nb.attacks.reference import attack_r, base, rmia, watson, watson_worlds
from mia_nb.attacks.registry import ATTACKS, NAMES, Attack
from mia_nb.attacks.single import attack_p, loss, vote
from mia_nb.attacks.smooth import lira_smooth, releases
from mia_nb.attacks.summaries import (
    LARGEST_MARGIN,
    Summary,
    confidences_of,
    left_out,
    worlds_of,
)
from mia_nb.attacks.tuned import Tuned, rmia_tuned, tuned_outside
from mia_nb.checks import checked, hint, instance, row_numbers, shown
from mia_nb.types import Scores, Signals, pair_ids

# attacks that read their references block by block, from where they lie
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
# attacks whose references are summarised once for all targets: by means and variances, or by
# confidences
READS_WORLDS = (attack_r, lira, lira_smooth, nig)
READS_CONFIDENCES = (rmia, base)
TUNING_OPTIONS = ("temperatures", "combine", "seed")  # of rmia_tuned, for its choice
# entries of info, besides the number of queries, in which targets and references must agree
PLAN_ENTRIES = (
    "input_dropout",
    "augment",
    "mask_scope",
    "per_step",
    "seed",
    "noise",
    "temperature",
)
LEARN_A_SPREAD = ("lira", "nig_offline", "releases", "spikes")  # how their names begin
FEWEST_FOR_A_SPREAD = 6  # models in pairs, which leave a target two references on each side
PLAN_DEFAULTS = {"mask_scope": "query", "per_step": False}  # where info has no entry


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
        keep_complement: drops references with the target's mask only, and keeps its complementary
            models, which leaks the design.

    Returns:
        Scores, (targets, audited samples), larger = more likely a member; `info["flags"]` says
        what may make them mean something else.

    Raises:
        ValueError: for an unknown attack, hidden membership, references that saw no or every
            audited sample, margins that are not finite, and target and references that differ in
            samples or labels (only shokri and song_mittal learn from other samples).

    Every row whose mask on the audited columns, those that all models saw aside, equals the
    target's or its exact complement is no reference, whichever pool it is in. With none left the
    attack gets references=None. The attack sees all columns, Scores only audited ones. Where
    samples lack a side (Bernoulli designs) they score NaN and the share is a flag; the attack's
    warnings are flags too, as are outputs after every time step, and targets and references on two
    scales or queried by two plans. References are read block by block where they lie, so that
    memory beyond them hardly grows with their number; shokri, song_mittal and functions of your own
    get a copy, rmia_tuned one of the samples it chooses on. rmia, rmia_tuned, base, attack_r,
    watson, lira, lira_smooth and nig read the models once for all targets (`summaries.left_out`),
    so that M models as targets of each other take about M log M readings in place of M^2; trims,
    medians and joint forms do not. Example:
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
    plain, options = _function_and_options(function)
    unit, held_out, disjoint = _units(plain, target, pool, targets, keep_complement)
    rows = [np.flatnonzero(unit != number) for number in held_out]
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", UserWarning)
        value = _values(name, function, target, pool, targets, unit, held_out)
    designs = _designs(pool, rows)
    flags = _flags(target, pool, designs, keep_complement, _warning_texts(raised))
    if np.isnan(value).any():
        flags.append(_flag_of_unscored(np.isnan(value), pool, rows, audited))
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
    """(targets, audited samples) scores of each target. Its references are the models of the pool
    outside the unit that is held out for it.
    """
    plain, options = _function_and_options(function)
    parameters = inspect.signature(plain).parameters
    tolerant = {}  # a design that leaves gaps gets a flag, and is not refused
    for option, value in (("missing", "nan"), ("allow_unequal", True)):
        if option in parameters and option not in options:
            tolerant[option] = value
    # functions from elsewhere, and attacks that learn a classifier, need whole arrays
    select_models = partial(select_lazily, pool) if plain in READS_BLOCKS else pool.select
    audited = ~target.population
    values = np.empty((len(targets), audited.sum()))
    summaries = _summaries(plain, options, target.query_kind, pool, unit, set(held_out))
    for number, summary in summaries:
        rows = np.flatnonzero(unit != number)
        references = select_models(rows) if len(rows) else None
        arguments = tolerant if summary is None else tolerant | {"summary": summary}
        for row in np.flatnonzero(held_out == number):
            t = targets[row]
            hidden_target = target.select(models=slice(t, t + 1)).hide()
            scores = _scores_of_target(function, name, hidden_target, references, arguments)
            values[row] = scores[audited]
    return values


def _flag_of_unscored(
    missing: np.ndarray, pool: Signals, rows: list[np.ndarray], audited: np.ndarray
) -> str:
    """The flag of scores (targets, audited samples) that are missing: how many, and why."""
    reason = "no reference on one side"
    for missing_of_target, models in zip(missing, rows, strict=True):
        if missing_of_target.any():
            seen_by = pool.member[models][:, audited][:, missing_of_target].sum(0)
            if ((seen_by > 0) & (seen_by < len(models))).any():
                reason = "the attack gave NaN"
    return f"{missing.mean():.2%} of the samples unscored: {reason}"


@checked
def find(attack: Anything) -> tuple[str, Attack]:
    """An attack by name.

    Parameters:
        attack: a name of ATTACKS, also as tables write it ("RMIA"), or a function (target,
            references, **options) -> scores (N,), maybe with options bound by functools.partial.

    Returns:
        (its name in ATTACKS, or the function's own with the bound options; the function).

    Raises:
        ValueError: for a name that is not known.

    Example:
        name, attack = find("rmia")
    """
    if isinstance(attack, str):
        keys = {name.casefold(): key for key, name in NAMES.items()} | {key: key for key in ATTACKS}
        attack = keys.get(attack.casefold(), attack)
        if attack not in ATTACKS:
            raise ValueError(
                f"unknown attack {attack!r}{hint(attack, ATTACKS)}; known are {', '.join(ATTACKS)}"
            )
        return attack, ATTACKS[attack]
    plain, options = _function_and_options(instance("attack", attack, Callable))
    for name, known in ATTACKS.items():
        if _function_and_options(known) == (plain, options):
            return name, attack
    bound = ", ".join(f"{option}={value!r}" for option, value in options.items())
    name = getattr(plain, "__name__", type(plain).__name__)
    return f"{name}({bound})" if bound else name, attack


@checked
def refuse_too_few(attacks: Anything, num_models: Whole) -> None:
    """Refuse attacks, before anything is trained, that so many models cannot support.

    Parameters:
        attacks: a list of names of ATTACKS, or of functions.
        num_models: how many a pool in pairs will have; a target's references are all but its pair.

    Raises:
        ValueError: for a name that is not known, and for an attack that learns a spread from two
            references or more on each side where fewer are left.

    Example:
        refuse_too_few(["rmia", "loss"], 4)
    """
    for attack in attacks:
        name, _ = find(attack)
        if num_models < FEWEST_FOR_A_SPREAD and name.startswith(LEARN_A_SPREAD):
            raise ValueError(
                f"num_models={num_models}: {name} learns a spread from two references or more on"
                f" each side; take {FEWEST_FOR_A_SPREAD} models or more, or leave it out"
            )


def _scores_of_target(
    function: Callable, name: str, target: Signals, references: Signals | None, options: dict
) -> np.ndarray:
    """(N,) scores of one target; ValueError that names the attack where it fails, or does not give
    a real number for each sample.
    """
    try:
        scores = function(target, references, **options)
    except ValueError as error:
        if "read-only" not in str(error):
            raise
        raise ValueError(
            f"attack {shown(name)} changes its arguments, which belong to other attacks too: work"
            " on copies"
        ) from error
    except (KeyError, IndexError, TypeError, AttributeError, ArithmeticError) as error:
        raise ValueError(
            f"attack {shown(name)} fails: {type(error).__name__}: {str(error)[:160]}"
        ) from error
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


def _function_and_options(attack: Attack) -> tuple[Callable, dict]:
    """An attack's function without functools.partial, and the options that this bound to it."""
    return getattr(attack, "func", attack), dict(getattr(attack, "keywords", {}))


def _summaries(
    plain: Callable,
    options: dict,
    query_kind: str,
    pool: Signals,
    unit: np.ndarray,
    held_out: set[int],
) -> Iterator[tuple[int, Summary | Tuned | None]]:
    """(a unit that is held out, the summary of all other models) for each such unit; the summary is
    None for attacks that read their references themselves.
    """
    if plain is rmia_tuned:
        choice = {name: value for name, value in options.items() if name in TUNING_OPTIONS}
        return tuned_outside(pool, unit, held_out, **choice)
    name = getattr(plain, "__name__", "")
    combine = combination(name, query_kind, options.get("combine"))
    if plain is releases:
        read = partial(worlds_of, combine="llr")
    elif plain in READS_WORLDS and combine not in JOINT:
        read = partial(worlds_of, combine=combine)
    elif plain in READS_CONFIDENCES and _sums_will_do(options, pool):
        read = partial(confidences_of, combine=combine)
    elif plain is watson:
        read = partial(watson_worlds, combine=combine, signal=options.get("signal", "loss"))
    else:
        return iter([(number, None) for number in sorted(held_out)])

    def summary_of(rows: np.ndarray) -> Summary:
        return read(select_lazily(pool, rows))

    return left_out(unit, held_out, summary_of)


def _sums_will_do(options: dict, pool: Signals) -> bool:
    """Whether these options of rmia or base read nothing but sums of probabilities, and none of
    them is too small for float64.
    """
    if options.get("trim") or options.get("form") == "vote":
        return False
    return all(np.abs(margins).max(initial=0) <= LARGEST_MARGIN for margins in pool.margin)


def _units(
    plain: Callable, target: Signals, pool: Signals, targets: np.ndarray, keep_complement: bool
) -> tuple[np.ndarray, np.ndarray, bool]:
    """Which models of the pool are no references of which target.

    Samples that all models saw (with canaries, all other samples) are left aside: they tell
    complementary models from others no more than population samples do.

    Returns:
        unit: (M,) number of the unit of each model of the pool. Models of one unit have the same
            members or, unless complements are kept, complementary ones, and are held out together.
        held_out: (targets,) number of the unit held out for each target; -1 for none.
        disjoint: whether no model of the pool has a target's members or exactly the others.
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
    audited = ~(target if same_samples else pool).population
    target_masks = target.member[targets][:, ~target.population]
    reference_masks = pool.member[:, audited]
    unit = np.zeros(len(reference_masks), int)
    held_out = np.full(len(targets), -1)
    disjoint = True
    if target_masks.shape[1] == reference_masks.shape[1]:
        seen_by_all = target.member[:, ~target.population].all(0) & reference_masks.all(0)
        masks = np.vstack([reference_masks, target_masks])[:, ~seen_by_all]
        pair = pair_ids(masks)
        pair_of_reference, pair_of_target = np.split(pair, [len(reference_masks)])
        disjoint = not np.isin(pair_of_target, pair_of_reference).any()
        if same_samples:
            # with complements kept, the two masks of a pair are units of their own
            number = 2 * pair + masks[:, :1].any(1) if keep_complement else pair
            of_reference, of_target = np.split(number, [len(reference_masks)])
            numbers, unit = np.unique(of_reference, return_inverse=True)
            has_references = np.isin(of_target, numbers)
            held_out[has_references] = np.searchsorted(numbers, of_target[has_references])
    blind = [m for m, seen in enumerate(reference_masks) if seen.all() or not seen.any()]
    if any((unit[blind] != number).any() for number in held_out):
        raise ValueError(
            f"reference models {blind} saw none or all of the audited samples: they tell nothing,"
            " leave them out"
        )
    return unit, held_out, disjoint


def _designs(pool: Signals, rows: list[np.ndarray]) -> list[tuple[int, bool]]:
    """For each target: its references a side, the median over audited samples of the smaller of IN
    and OUT (in pairs, the pairs that are left); and whether their IN counts differ between samples.
    """
    designs = []
    models_in = _models_in(pool)
    for references in rows:
        excluded = np.setdiff1d(np.arange(pool.shape[0]), references)
        n_in = (models_in - pool.member[excluded].sum(0))[~pool.population]
        k = 0
        if len(references):
            k = int(np.median(np.minimum(n_in, len(references) - n_in)))
        designs.append((k, bool(np.ptp(n_in))))
    return designs


def _models_in(pool: Signals) -> np.ndarray:
    """(N,) number of models that were trained on each sample."""
    return np.add.reduce(pool.member, axis=0, dtype=np.int64)


def _warning_texts(raised: list[warnings.WarningMessage]) -> list[str]:
    """Texts of the attack's own warnings; those of other categories are issued again."""
    for warning in raised:
        if warning.category is not UserWarning:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return [str(warning.message) for warning in raised if warning.category is UserWarning]


def _flags(
    target: Signals,
    pool: Signals,
    designs: list[tuple[int, bool]],
    keep_complement: bool,
    warned: list[str],
) -> list[str]:
    """What may make the scores mean something else than they seem to, each once."""
    uneven = any(differ for _, differ in designs)
    # Bernoulli, or other samples: counts vary, but not with one target's membership
    varied = np.ptp(_models_in(pool)[~pool.population])
    flags = []
    if keep_complement:
        flags.append("complementary model kept: the design leaks membership")
    if uneven and not varied and not keep_complement:
        flags.append("balanced design without pairs: reference counts leak membership")
    # outputs of spiking networks read out in two ways
    target_readout = target.info.get("readout")
    pool_readout = pool.info.get("readout")
    both_known = None not in (target_readout, pool_readout)
    if both_known and target_readout != pool_readout and "align" not in target.info:
        flags.append(
            f"targets read out by {target_readout}, references by {pool_readout}: two scales;"
            " align them"
        )
    if target.query_kind == "steps":
        flags.append("outputs after every time step: a stronger attacker")
    if target.query_kind == "releases":
        flags.append("several releases of one model: an attacker who kept the earlier ones")
    # references show what a target might answer only if they got the same queries
    target_plan = PLAN_DEFAULTS | target.info | {"queries": target.shape[1]}
    pool_plan = PLAN_DEFAULTS | pool.info | {"queries": pool.shape[1]}
    for name in ("queries", *PLAN_ENTRIES):
        if name not in target_plan or name not in pool_plan:
            continue
        of_targets = target_plan[name]
        of_references = pool_plan[name]
        if (of_targets or None) != (of_references or None):  # None, False and 0 mean the same
            flags.append(
                f"targets queried with {name} {of_targets}, references with {of_references}: not"
                " one plan"
            )
    return list(dict.fromkeys([*flags, *warned]))


def _by_membership(
    target: Signals, targets: np.ndarray, audited: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and mean loss of each target, (targets, 2): on members, on non-members; NaN for the
    loss of aligned margins.
    """
    accuracy = np.full((len(targets), 2), np.nan)
    mean_loss = np.full((len(targets), 2), np.nan)
    for row, t in enumerate(targets):
        correct = over_queries(target.correct[[t]], target.query_kind)[0]
        losses = None
        if "align" not in target.info:
            losses = over_queries(-log_p(target.margin[[t]]), target.query_kind)[0]
        member = target.member[t]
        for column, side in enumerate((member & audited, ~member & audited)):
            if not side.any():
                continue
            accuracy[row, column] = _mean_over(side, correct)
            if losses is not None:
                mean_loss[row, column] = _mean_over(side, losses)
    return accuracy, mean_loss


def _mean_over(side: np.ndarray, values: np.ndarray) -> float:
    """Mean of values (N,) over the samples of a mask (N,)."""
    # as floats: booleans times booleans would be "any"
    return values.astype(np.float64) @ side / np.count_nonzero(side)
