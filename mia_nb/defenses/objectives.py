"""Defenses that change the loss of a training step: functions of one model's step, usable under
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
    """The data of one model's optimiser step that a defense sees.

    Attributes:
        forward: normalised images (B, C, H, W) -> logits (B, K).
        criterion: logits, labels -> losses (B,).
        x: the batch of normalised images (B, C, H, W).
        y: their labels (B,), int64.
        epoch: counted from 0.
        params: weights that the optimiser changes, by name.
        draws: the defense's own random numbers, and held-out images "x", "y" (B, ...) if it uses
            some.
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
    """mean loss + weight * sum |w| over all trained weights."""
    losses, mean = plain(step)
    return losses, mean + weight * sum(p.abs().sum() for p in step.params.values())


def l2(step: Step, *, weight: float) -> tuple[Tensor, Tensor]:
    """mean loss + weight * sum w^2, in addition to the optimiser's own weight decay; with SGD this
    equals 2 * weight more weight decay.
    """
    losses, mean = plain(step)
    return losses, mean + weight * sum(p.square().sum() for p in step.params.values())


def label_smoothing(step: Step, *, smoothing: float) -> tuple[Tensor, Tensor]:
    """Cross-entropy to (1 - a) onehot(y) + a / K.

    Caveat: attacks with references may find more members than without it.
    """
    logits = step.forward(step.x)
    losses = step.criterion(logits, step.y)
    return losses, F.cross_entropy(logits, step.y, label_smoothing=smoothing)


def relaxloss(step: Step, *, target: float) -> tuple[Tensor, Tensor]:
    """Training towards a mean loss `target` instead of 0.

    A batch whose mean cross-entropy is at least the target is descended as usual. Below it, even
    epochs (the first is 0) ascend, and odd epochs descend the cross-entropy to flattened labels t_y
    = p_y, t_c = (1 - p_y) / (K - 1), held fixed. Source: Chen, Yu and Fritz (ICLR 2022), Algorithm
    1. Caveat: no target fits all data; 0 is no defense, and with log K nothing is learned.
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
    is the biased estimate with the kernel exp(-|p - q|^2 / (2 bandwidth^2)), averaged over the
    classes that both batches hold. The held-out batch has the classes of the training batch; its
    outputs are constants, so nothing is learned from its labels. All three batches pass the network
    as one, and share its batch norms. The losses returned are those of the unmixed batch. Source:
    Li, Li and Ribeiro (CODASPY 2021), who take MMD in a separate pass after each epoch, and only if
    training accuracy is 3 points or more above that on held-out images; here it is in every step.
    Hong, Wu, Gruber and Lee (arXiv 2501.06686) give weight 5e-4 and no kernel. Caveat: MMD^2 is at
    most 2, so with this weight the effect is that of mixup alone.
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
    seed: int,
    held_out: np.ndarray,
    held_out_labels: np.ndarray,
    y: np.ndarray,
    /,
    *,
    alpha: float,
    **_: object,
) -> dict[str, Tensor]:
    """An epoch's random numbers for `mmd_mixup`.

    Parameters:
        seed: of the random numbers.
        held_out: (H,) numbers of the held-out images.
        held_out_labels: (H,) their labels.
        y: (steps, batch) labels of the training batches.
        alpha: of the Beta distribution of lam; 0 for lam = 1, without mixup.

    Returns:
        lam (steps,) float32; other (steps, batch), a permutation of each batch; held_out (steps,
        batch), for each training image the number of a held-out image of its class, or of any class
        if its class has none.
    """
    steps, batch = y.shape
    rng = np.random.default_rng(seed)
    lam = np.ones(steps, np.float32)
    if alpha:
        lam = rng.beta(alpha, alpha, steps).astype(np.float32)
    other = rng.permuted(np.tile(np.arange(batch), (steps, 1)), axis=1)
    # in order of labels, the held-out images of a training image's class lie from `first` to `end`
    order = np.argsort(held_out_labels, kind="stable")
    sorted_labels = held_out_labels[order]
    first = np.searchsorted(sorted_labels, y, "left")
    end = np.searchsorted(sorted_labels, y, "right")
    missing = first == end
    first[missing] = 0
    end[missing] = len(held_out)
    place = first + (rng.random(y.shape) * (end - first)).astype(int)
    return {
        "lam": torch.from_numpy(lam),
        "other": torch.from_numpy(other),
        "held_out": torch.from_numpy(held_out[order[place]]),
    }


def class_mmd(p: Tensor, p_labels: Tensor, q: Tensor, q_labels: Tensor, bandwidth: float) -> Tensor:
    """Mean of MMD^2 between the rows of p (A, K) and of q (B, K) of a class, over the classes that
    both have; 0 if there is none.
    """
    classes = torch.arange(p.shape[1], device=p.device)[:, None]
    weights_p = (classes == p_labels).to(p.dtype)  # (K, A)
    weights_q = (classes == q_labels).to(p.dtype)  # (K, B)
    both = ((weights_p.sum(1) > 0) & (weights_q.sum(1) > 0)).to(p.dtype)
    weights_p = weights_p / weights_p.sum(1, keepdim=True).clamp(min=1)
    weights_q = weights_q / weights_q.sum(1, keepdim=True).clamp(min=1)

    def mean_kernel(a: Tensor, weights_a: Tensor, b: Tensor, weights_b: Tensor) -> Tensor:
        """(K,) mean of the kernel over the pairs of rows of a and b in each class."""
        squared = a.square().sum(1)[:, None] + b.square().sum(1) - 2 * a @ b.T
        kernel = torch.exp(-squared / (2 * bandwidth**2))
        return ((weights_a @ kernel) * weights_b).sum(1)

    gaps = (
        mean_kernel(p, weights_p, p, weights_p)
        + mean_kernel(q, weights_q, q, weights_q)
        - 2 * mean_kernel(p, weights_p, q, weights_q)
    )
    return (both * gaps).sum() / both.sum().clamp(min=1)
