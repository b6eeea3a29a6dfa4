"""Defenses that change what a training step minimises: functions of one model's step, usable under
vmap.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor


class Step(NamedTuple):
    """What a defense sees of one model's optimiser step.

    Attributes:
        forward: normalised images (B, C, H, W) -> logits (B, K).
        criterion: logits, labels -> losses (B,).
        x: the batch of normalised images (B, C, H, W).
        y: their labels (B,), int64.
        epoch: from 0 up.
        params: weights that the optimiser changes, by name.
        draws: the defense's own random numbers, and held-out images "x", "y" (B, ...) where it
            draws some.
    """

    forward: Callable[[Tensor], Tensor]
    criterion: Callable[[Tensor, Tensor], Tensor]
    x: Tensor
    y: Tensor
    epoch: int
    params: dict[str, Tensor]
    draws: dict[str, Tensor]


def plain(step: Step) -> tuple[Tensor, Tensor]:
    """(losses (B,), their mean): no defense."""
    losses = step.criterion(step.forward(step.x), step.y)
    return losses, losses.mean()


def l1(step: Step, *, weight: float) -> tuple[Tensor, Tensor]:
    """mean loss + weight * sum |w| over everything that is trained."""
    losses, mean = plain(step)
    return losses, mean + weight * sum(p.abs().sum() for p in step.params.values())


def l2(step: Step, *, weight: float) -> tuple[Tensor, Tensor]:
    """mean loss + weight * sum w^2, beside the optimiser's own weight decay; of SGD the same as 2 *
    weight more of that.
    """
    losses, mean = plain(step)
    return losses, mean + weight * sum(p.square().sum() for p in step.params.values())


def label_smoothing(step: Step, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy to (1 - a) onehot(y) + a / K.

    Caveat: it may raise what attacks with references find.
    """
    logits = step.forward(step.x)
    losses = step.criterion(logits, step.y)
    return losses, F.cross_entropy(logits, step.y, label_smoothing=smoothing)


def relaxloss(step: Step, *, target: float) -> tuple[Tensor, Tensor]:
    """Training towards a mean loss `target` instead of 0.

    A batch whose mean cross-entropy is at least the target is descended as usual. Below it: in even
    epochs (the first is 0) ascent, in odd ones descent of the cross-entropy to flattened labels t_y
    = p_y, t_c = (1 - p_y) / (K - 1), held fixed. Source: Chen, Yu and Fritz (ICLR 2022), Algorithm
    1. Caveat: no target fits all data; 0 is no defense, log K learns nothing.
    """
    logits = step.forward(step.x)
    losses = step.criterion(logits, step.y)
    mean = losses.mean()
    if step.epoch % 2 == 0:
        return losses, (mean - target).abs()
    log_p = logits.log_softmax(1)
    p_y = log_p.gather(1, step.y[:, None]).exp().detach()
    one_hot = F.one_hot(step.y, logits.shape[1]).to(log_p.dtype)
    flat = one_hot * p_y + (1 - one_hot) * (1 - p_y) / (logits.shape[1] - 1)
    flattened = -(flat * log_p).sum(1).mean()
    return losses, torch.where(mean.detach() >= target, mean, flattened)


def mmd_mixup(step: Step, *, weight: float, bandwidth: float) -> tuple[Tensor, Tensor]:
    """Mixup's cross-entropy + weight * MMD^2 between the softmax outputs of training and held-out
    images of one class.

    Mixup: lam x + (1 - lam) x', lam CE(., y) + (1 - lam) CE(., y'), lam ~ Beta(alpha, alpha). MMD^2
    is the biased estimate with the kernel exp(-|p - q|^2 / (2 bandwidth^2)), class by class,
    averaged over the classes that both batches hold; the held-out batch has the classes of the
    training batch, and its outputs are constants: nothing is learned towards its labels. All three
    batches pass the network as one, and share its batch norms. The losses returned are those of the
    unmixed batch. Source: Li, Li and Ribeiro (CODASPY 2021), who take MMD in a pass of its own
    after each epoch, and only where training accuracy is 3 points or more above that on held-out
    images; here it is in every step. Hong, Wu, Gruber and Lee (arXiv 2501.06686) give weight 5e-4
    and no kernel. Caveat: MMD^2 is at most 2, so that what this weight gives is mixup's result.
    """
    draws = step.draws
    size = len(step.y)
    lam = draws["lam"]
    other = draws["other"]
    mixed = lam * step.x + (1 - lam) * step.x[other]
    logits = step.forward(torch.cat([mixed, step.x, draws["x"].to(step.x.dtype)]))
    on_mixed = logits[:size]
    on_members = logits[size : 2 * size]
    on_held_out = logits[2 * size :]
    to_own_labels = step.criterion(on_mixed, step.y)
    to_other_labels = step.criterion(on_mixed, step.y[other])
    mixup = lam * to_own_labels + (1 - lam) * to_other_labels
    gap = class_mmd(
        on_members.softmax(1), step.y, on_held_out.softmax(1).detach(), draws["y"], bandwidth
    )
    return step.criterion(on_members, step.y), mixup.mean() + weight * gap


def mixup_draws(
    seed: int, numbers: np.ndarray, known: np.ndarray, y: np.ndarray, *, alpha: float, **_: object
) -> dict[str, Tensor]:
    """An epoch's random numbers for `mmd_mixup`.

    Parameters:
        seed: of the numbers.
        numbers: (H,) numbers of the held-out images.
        known: (H,) their labels.
        y: (steps, batch) labels of the training batches.
        alpha: of the Beta distribution of lam; 0 for lam = 1, without mixup.

    Returns:
        lam (steps,) float32; other (steps, batch), a permutation of each batch; held_out (steps,
        batch), for each training image the number of a held-out one of its class, or of any class
        if none has it.
    """
    steps, batch = y.shape
    rng = np.random.default_rng(seed)
    lam = np.ones(steps, np.float32)
    if alpha:
        lam = rng.beta(alpha, alpha, steps).astype(np.float32)
    other = rng.permuted(np.tile(np.arange(batch), (steps, 1)), axis=1)
    # sorted by label, the held-out images of a class are those from `first` to `end`
    order = np.argsort(known, kind="stable")
    first = np.searchsorted(known[order], y, "left")
    end = np.searchsorted(known[order], y, "right")
    has_class = first < end
    first = np.where(has_class, first, 0)
    count = np.where(has_class, end - first, len(numbers))
    chosen = first + (rng.random(y.shape) * count).astype(int)
    return {
        "lam": torch.from_numpy(lam),
        "other": torch.from_numpy(other),
        "held_out": torch.from_numpy(numbers[order[chosen]]),
    }


def class_mmd(p: Tensor, y: Tensor, q: Tensor, other: Tensor, bandwidth: float) -> Tensor:
    """Mean over classes of MMD^2 between the rows of p (A, K) and of q (B, K) that have this class;
    0 where none has both.
    """
    classes = torch.arange(p.shape[1], device=p.device)[:, None]
    weights_p = (classes == y).to(p.dtype)  # (K, A)
    weights_q = (classes == other).to(p.dtype)  # (K, B)
    both = ((weights_p.sum(1) > 0) & (weights_q.sum(1) > 0)).to(p.dtype)
    weights_p = weights_p / weights_p.sum(1, keepdim=True).clamp(min=1)
    weights_q = weights_q / weights_q.sum(1, keepdim=True).clamp(min=1)

    def mean_kernel(a: Tensor, wa: Tensor, b: Tensor, wb: Tensor) -> Tensor:
        """(K,) mean over the pairs of rows of a and b that have a class."""
        squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        kernel = torch.exp(-squared / (2 * bandwidth**2))
        return ((wa @ kernel) * wb).sum(1)

    gaps = (
        mean_kernel(p, weights_p, p, weights_p)
        + mean_kernel(q, weights_q, q, weights_q)
        - 2 * mean_kernel(p, weights_p, q, weights_q)
    )
    return (both * gaps).sum() / both.sum().clamp(min=1)
