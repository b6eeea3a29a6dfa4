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


def designs_of(pool: Signals, rows: list[np.ndarray]) -> list[tuple[int, bool]]:
    """For each target, given the rows of its references: the number of references on a side (the
    median over audited samples of the smaller one), and whether the IN counts of samples differ.
    """
    designs = []
    models_in = pool.member.sum(0)
    for references in rows:
        excluded = np.setdiff1d(np.arange(pool.shape[0]), references)
        n_in = (models_in - pool.member[excluded].sum(0))[~pool.population]
        k = 0
        if len(references):
            k = int(np.median(np.minimum(n_in, len(references) - n_in)))
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
    uneven = any(differ for _, differ in designs)
    # in Bernoulli designs, or for other samples, counts vary, but not with a target's membership
    varied = np.ptp(pool.member.sum(0)[~pool.population])
    flags = []
    if keep_complement:
        flags.append("complementary model kept: the design leaks membership")
    if uneven and not varied and not keep_complement:
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
    missing: np.ndarray, pool: Signals, rows: list[np.ndarray], audited: np.ndarray
) -> str:
    """The flag that says how many scores (targets, audited samples) are missing, and why."""
    reason = "no reference on one side"
    for missing_of_target, models in zip(missing, rows, strict=True):
        if missing_of_target.any():
            seen_by = pool.member[models][:, audited][:, missing_of_target].sum(0)
            if ((seen_by > 0) & (seen_by < len(models))).any():
                reason = "the attack gave NaN"
    return f"{missing.sum()} of {missing.size} scores missing: {reason}"


def texts_of(raised: list[warnings.WarningMessage]) -> list[str]:
    """Texts of the attack's own warnings; those of other categories are issued again."""
    for warning in raised:
        if warning.category is not UserWarning:
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    return [str(warning.message) for warning in raised if warning.category is UserWarning]
