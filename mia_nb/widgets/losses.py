"""Training losses of one sample along the epochs, by the models that trained on it."""

from functools import lru_cache

import numpy as np

from mia_nb.metrics.table_text import in_digits
from mia_nb.plots import samples
from mia_nb.widgets.stored import Source

KEPT = 1e8  # largest number of losses of one pool in memory


@lru_cache(2)  # for all explorers together: each entry may take 400 MB
def losses_of(source: Source) -> tuple[np.ndarray, np.ndarray] | None:
    """(log losses (M, E, N), quartiles of the members' losses (3, E)); None where none are stored.

    M is the number of models, limited by `KEPT`; the first ones are taken.
    """
    first = source.trace(0)
    if first is None:
        return None
    models = min(len(source.signals.margin), max(1, int(KEPT / first.size)))
    logs = np.stack([source.trace(model) for model in range(models)])
    quartiles = []
    for log in logs:
        of_members = log[:, ~np.isnan(log).all(0)]
        quartiles.append(np.nanquantile(of_members, [0.25, 0.5, 0.75], axis=1))
    return logs, np.exp(np.mean(quartiles, axis=0))


@lru_cache(8)
def losses_picture(
    source: Source, models: tuple[int, ...], column: int, target: int | None = None
) -> dict:
    """A sample's losses in those of the models that trained on it, and in the target if one is
    given.
    """
    losses = losses_of(source)
    if losses is None:
        return samples.empty("no training losses are stored with this pool")
    logs, quartiles = losses
    all_lines = np.exp(logs[:, :, column])
    # NaN in every epoch: not trained on it; in some epochs: the incomplete last batch was left out
    trained = ~np.isnan(all_lines).all(1)
    shown = [model for model in models if model < len(all_lines) and trained[model]]
    lines = all_lines[shown]
    target_line = None
    if target is not None and target < len(all_lines) and trained[target]:
        target_line = all_lines[target]
    last_losses = lines[:, -1]
    last_losses = last_losses[~np.isnan(last_losses)]
    sample_text = "no reference trained on it"
    if len(last_losses):
        sample_text = f"{in_digits(np.median(last_losses))} here"
    median = in_digits(quartiles[1, -1])
    return samples.sample_traces(
        lines,
        quartiles,
        f"loss in the last epoch: {sample_text}, {median} for the median member",
        target=target_line,
    )
