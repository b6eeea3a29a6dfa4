"""Checks of outputs from elsewhere: probabilities in place of logits, one model twice, accuracy at
chance, and an inverted mask.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mia_nb import digests
from mia_nb.auditing.sentences import LOOK
from mia_nb.metrics.curve import auc, auc_null_error
from mia_nb.types import Signals

INVERTED = 6.0  # standard errors below chance at which a mask is taken to be inverted
LOST = 2.0  # with fewer standard errors above chance a model counts as at chance
ROUNDED = 0.05  # share by which sums of probabilities may miss 1
PROBABILITIES = {
    "sum to 1": "probabilities were passed; pass logits, or np.log(p)",
    "lie in [0, 1]": (
        "sigmoids were passed; pass logits, or np.log(p / (1 - p)) with p clipped "
        "(logits that lie so by chance: pass logits - 1, which changes no softmax)"
    ),
}


def refuse_probabilities(logits: np.ndarray) -> None:
    """ValueError where some model's outputs are probabilities; log-probabilities are accepted."""
    kinds = np.array([_kind_of_probabilities(outputs) for outputs in logits])
    for kind, advice in PROBABILITIES.items():
        models = np.flatnonzero(kinds == kind)
        if len(models):
            raise ValueError(
                f"the outputs of {_model_words(models)} are all >= 0 and {kind}: {advice}"
            )


def _kind_of_probabilities(outputs: np.ndarray) -> str:
    """The key of PROBABILITIES that one model's outputs (..., K) fit; "" for logits."""
    if not outputs.min() >= 0:  # negative, or NaN
        return ""
    if np.allclose(outputs.sum(-1, dtype=float), 1, rtol=ROUNDED, atol=0):
        return "sum to 1"
    return "lie in [0, 1]" if outputs.max() <= 1 else ""


def refuse_copies(logits: np.ndarray) -> None:
    """ValueError where two models have the same outputs: one would be a reference of itself."""
    model_of: dict[str, int] = {}  # the first model with outputs of this digest
    for model, outputs in enumerate(logits):
        first = model_of.setdefault(digests.digest(outputs), model)
        if first != model:
            raise ValueError(
                f"models {first} and {model} gave the same outputs: is one model in there twice?"
            )


def models_at_chance(logits: np.ndarray, labels: np.ndarray, member: np.ndarray) -> list[int]:
    """The models that are at chance on their own members."""
    at_chance = []
    for model, (outputs, inside) in enumerate(zip(logits, member, strict=True)):
        mean = outputs if outputs.ndim == 2 else outputs.mean(0)  # over queries
        if _above_chance(mean[inside].argmax(1), labels[inside]) < LOST:
            at_chance.append(model)
    return at_chance


def at_chance_words(models: list[int]) -> str:
    """A sentence about models that are at chance on their own members."""
    return (
        f"{LOOK} {_model_words(models)} named members' classes no better than chance (shuffled or"
        " shifted labels, negated logits, another order of samples or classes, an inverted mask, or"
        " no training?)."
    )


def _model_words(numbers: Sequence[int]) -> str:
    """ "model 3", "models 0, 1"; of many, the first eight."""
    shown = ", ".join(map(str, numbers[:8]))
    if len(numbers) > 8:
        shown += ", ..."
    return f"models {shown}" if len(numbers) > 1 else f"model {shown}"


def _above_chance(predicted: np.ndarray, labels: np.ndarray) -> float:
    """By how many standard errors the accuracy exceeds that of the predictions in random order."""
    samples = len(labels)
    classes, counts = np.unique(labels, return_counts=True)
    if len(classes) < 2:
        return np.inf
    chance = 0.0
    for label, count in zip(classes, counts, strict=True):
        chance += np.mean(predicted == label) * count / samples
    error = np.sqrt(chance * (1 - chance) / samples)
    return float((np.mean(predicted == labels) - chance) / max(error, 1e-12))


def inverted_mask_remark(signals: Signals) -> str:
    """What to say where members' margins lie far below non-members' in every model; "" where they
    do not. ValueError if the models have several training sets: their masks are inverted.

    With one training set it is only a suspicion: a few groups of samples that depend on each other
    (a patient's images), each wholly on one side, may do the same by chance.
    """
    audited = ~signals.population
    margin = signals.margin.mean(1)[:, audited]
    member = signals.member[:, audited]
    spread = auc_null_error(member.sum(1), (~member).sum(1))
    values = np.array([auc(phi, inside) for phi, inside in zip(margin, member, strict=True)])
    if ((values - 0.5) / spread).max() >= -INVERTED:
        return ""
    who = "every model" if len(values) > 1 else "the model"
    surer = f"{who} is surer of non-members than of members (AUC of the margin {values.mean():.3f})"
    if (member == member[0]).all():
        return (
            f"{LOOK} {surer}. Either member is inverted (1 marks samples of the"
            " training set), or samples depend on each other, or the two sides are not from one"
            " source."
        )
    raise ValueError(
        f"{surer}: is member inverted? 1 marks samples of the training set; if"
        " it marks the others here, pass ~member"
    )
