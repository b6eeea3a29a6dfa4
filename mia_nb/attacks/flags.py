"""The flags in `Scores.info`: warnings that scores may not mean what they seem to."""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.types import Signals

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
PLAN_DEFAULTS = {"mask_scope": "query", "per_step": False}  # where info has no entry


def designs_of(pool: Signals, reference_rows: list[np.ndarray]) -> list[tuple[int, bool]]:
    """For each target, given the rows of its references: the number of references on a side (the
    median over audited samples of the smaller one), and whether the IN counts of samples differ.
    """
    designs = []
    models_in = pool.member.sum(0)
    for rows in reference_rows:
        # the few models that are no references are faster to count
        others = np.setdiff1d(np.arange(pool.shape[0]), rows)
        n_in = (models_in - pool.member[others].sum(0))[~pool.population]
        k = 0
        if len(rows):
            k = int(np.median(np.minimum(n_in, len(rows) - n_in)))
        designs.append((k, bool(np.ptp(n_in))))
    return designs


def flags_of(
    target: Signals,
    pool: Signals,
    designs: list[tuple[int, bool]],
    keep_complement: bool,
    warned: list[str],
) -> list[str]:
    """The flags of scores, each once."""
    references_differ = any(differ for _, differ in designs)
    # where the counts of the whole pool differ already, as in Bernoulli designs, those of the
    # references do not follow a target's membership
    pool_differs = np.ptp(pool.member.sum(0)[~pool.population])
    flags = []
    if keep_complement:
        flags.append("complementary model kept: the design leaks membership")
    elif references_differ and not pool_differs:
        flags.append("balanced design without pairs: reference counts leak membership")
    # outputs of spiking networks, read out in different ways
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
    # references and targets are comparable only if they got the same queries
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


def flag_of_unscored(
    missing: np.ndarray, pool: Signals, reference_rows: list[np.ndarray], audited: np.ndarray
) -> str:
    """The flag that says how many scores (targets, audited samples) are missing, and why."""
    reason = "no reference on one side"
    for missing_of_target, rows in zip(missing, reference_rows, strict=True):
        if missing_of_target.any():
            n_in = pool.member[rows][:, audited][:, missing_of_target].sum(0)
            if ((n_in > 0) & (n_in < len(rows))).any():
                reason = "the attack gave NaN"
    return f"{missing.sum()} of {missing.size} scores missing: {reason}"


def texts_of(raised: list[warnings.WarningMessage]) -> list[str]:
    """Texts of the attack's own warnings; those of other categories are issued again."""
    texts = []
    for warning in raised:
        if warning.category is UserWarning:
            texts.append(str(warning.message))
        else:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return texts
