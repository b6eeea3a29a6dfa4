"""The scores that an attack gives every target and sample."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mia_nb import escape
from mia_nb.checks import reals


@dataclass(frozen=True, eq=False)
class Scores:
    """One attack on every target in turn; larger value = more likely a member.

    Fields:
        value: (targets, audited samples) float64; population samples are left out.
        member: (targets, audited samples) bool, the true membership.
        targets: (targets,) row numbers in the target pool.
        pair: (targets,) the bootstrap's unit: a target and its complementary model share a number.
        accuracy: (targets, 2) of each target on its members and on its non-members.
        loss: (targets, 2) mean loss in nats on members and on non-members.
        info: attack, options, k references per side, queries, query_kind, combine, keys, flags.

    Numbers of other types become float64. Raises ValueError for a value that holds no real numbers,
    shapes that differ and a `member` that is not boolean.
    """

    value: np.ndarray
    member: np.ndarray
    targets: np.ndarray
    pair: np.ndarray
    accuracy: np.ndarray
    loss: np.ndarray
    info: dict

    def __repr__(self) -> str:
        targets, samples = self.value.shape
        attack = escape.terminal(self.info.get("attack", "an attack"))
        return f"Scores: {attack} on {targets} targets, {samples:,} samples each"

    def _repr_html_(self) -> str:
        targets, samples = self.value.shape
        facts = {
            "attack": self.info.get("attack", "an attack"),
            "targets": f"{targets:,}",
            "samples each": f"{samples:,}",
        }
        if "k" in self.info:
            facts["reference models on each side"] = self.info["k"]
        if "queries" in self.info:
            facts["queries"] = self.info["queries"]
        return escape.html_facts(facts)

    def __post_init__(self):
        # float64, as signs and differences of small whole numbers overflow; the record is frozen
        object.__setattr__(self, "value", reals("value", self.value))
        if self.value.shape != self.member.shape or self.value.ndim != 2:
            raise ValueError(
                f"value {self.value.shape} and member {self.member.shape}: wanted two equal"
                " (targets, samples)"
            )
        if self.member.dtype != bool:
            raise ValueError(f"member has dtype {self.member.dtype}; wanted booleans")
