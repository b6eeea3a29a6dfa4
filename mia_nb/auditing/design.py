"""How members were drawn, and who is compared with whom."""

from __future__ import annotations

import numpy as np

from mia_nb.arguments import Rows
from mia_nb.auditing.coins import coin_fault
from mia_nb.auditing.sentences import design_words
from mia_nb.checks import checked, row_numbers
from mia_nb.metrics.pairs import in_pairs, units
from mia_nb.types import Signals


@checked
def design(signals: Signals, split: str | None = None, *, targets: Rows | None = None) -> dict:
    """How members were drawn, as far as the masks show, and who is compared with whom.

    Parameters:
        signals: of M models.
        split: "pairs" or "bernoulli", how the members were drawn; None: as the signals' info says,
            if it does.
        targets: rows of the models that are attacked, the others being references alone; None:
            every model is attacked in turn.

    Returns:
        A dict about the targets of
            kind: "pairs" (rows in exact complements), "coins" (fair and independent as far as can
                be seen), "masks" (any others), or "mask" (one row that nobody declared a coin's,
                since one row shows too little).
            models, units (pairs, or different training sets), samples, audited, population: their
                numbers.
            members, non_members: those of the model with fewest.
            references: the number on a side, for the target with fewest.
            queries, draws: how many queries there are, and of which kind.
            words: all this in sentences.
    """
    of_all = signals.member[:, ~signals.population]
    unit_of_model = units(of_all)
    rows = row_numbers("targets", targets, len(of_all))
    member = of_all[rows]
    unit_of_target = unit_of_model[rows]
    declared = (split or signals.info.get("split")) == "bernoulli"
    if in_pairs(member, unit_of_target):
        kind = "pairs"
    elif not coin_fault(member) and (declared or len(member) > 1):
        kind = "coins"
    elif len(member) == 1:
        kind = "mask"
    else:
        kind = "masks"
    members = member.sum(1)
    references = []  # of each target, on the side of the typical sample that has fewer
    for unit in unit_of_target:
        others = of_all[unit_of_model != unit]
        trained = others.sum(0)
        references.append(int(np.median(np.minimum(trained, len(others) - trained))))
    facts = {
        "kind": kind,
        "models": len(member),
        "units": len(np.unique(unit_of_target)),
        "samples": len(signals.labels),
        "audited": member.shape[1],
        "population": int(signals.population.sum()),
        "members": int(members.min()),
        "non_members": int((member.shape[1] - members).min()),
        "references": min(references),
        "queries": signals.margin.shape[1],
        "draws": signals.query_kind,
    }
    return facts | {"words": design_words(facts)}
