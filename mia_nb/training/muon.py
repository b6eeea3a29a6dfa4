"""Muon: steps of convolution filters have singular values near 1, other weights follow SGD."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

STEPS = 3  # of the Newton-Schulz iteration
COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # these bring singular values near 1 in few steps


class Muon(torch.optim.Optimizer):
    """Convolution filters move by orthogonalised momentum, all other weights by SGD with Nesterov
    momentum.

    A filter bank (out, in, h, w) is read as a matrix (out, in * h * w). Its step is the matrix with
    the same singular vectors as the momentum and singular values near 1. The norm of the filter
    bank is held at sqrt(out), since a norm layer behind it makes the norm irrelevant.
    `torch.optim.Muon` takes only matrices, and no models stacked along a leading axis.

    Parameters:
        params: the weights; those that need no gradient stay unchanged.
        lr: peak rate of the filters; a schedule changes `param_groups[0]["lr"]`, and all other
            rates follow it.
        momentum: of the filters.
        matrix_lr: peak rate of matrices, such as a linear layer's.
        vector_lr: peak rate of vectors, such as biases, and of single numbers, such as a learned
            threshold.
        sgd_momentum: of matrices, vectors and numbers.
        decay: share by which a step at the peak rate shrinks matrices, vectors and numbers.
        stacked: whether each weight has a leading axis of models.

    Source: Jordan et al. 2024 (Muon); the settings are those of CIFAR-10 speed records, for the
    mean loss of a batch of 500.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        *,
        momentum: float,
        matrix_lr: float,
        vector_lr: float,
        sgd_momentum: float,
        decay: float,
        stacked: bool = False,
    ):
        for name, value in {"momentum": momentum, "sgd_momentum": sgd_momentum}.items():
            if not 0 <= value < 1:
                raise ValueError(f"{name}={value}: wanted a number from 0 up and below 1")
        for name, value in {"matrix_lr": matrix_lr, "vector_lr": vector_lr, "decay": decay}.items():
            if not value >= 0:
                raise ValueError(f"{name}={value}: wanted a number from 0 up")
        super().__init__(params, {"lr": lr})
        self.peak = float(lr)
        self.momentum = momentum
        self.matrix_lr = matrix_lr
        self.vector_lr = vector_lr
        self.sgd_momentum = sgd_momentum
        self.decay = decay
        self.stacked = stacked

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One step of every weight that has a gradient."""
        lr = self.param_groups[0]["lr"]
        for weight in self.param_groups[0]["params"]:
            if weight.grad is None:
                continue
            axes = weight.ndim - self.stacked  # of one model's weight
            fraction = lr / self.peak
            if axes == 4:
                self.step_filters(weight, lr)
            elif axes >= 2:
                self.step_sgd(weight, self.matrix_lr, fraction)
            else:
                self.step_sgd(weight, self.vector_lr, fraction)

    def moved(self, weight: Tensor, gradient: Tensor, momentum: float) -> Tensor:
        """Nesterov's direction: the gradient plus momentum times the updated buffer."""
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        buffer = state["momentum_buffer"].mul_(momentum).add_(gradient)
        return gradient + momentum * buffer

    def step_filters(self, weight: Tensor, lr: float | Tensor) -> None:
        """One step of a filter bank, or of a stack of them."""
        direction = self.moved(weight, weight.grad, self.momentum)
        axes = (-4, -3, -2, -1)
        norm = weight.square().sum(axes, keepdim=True).sqrt()
        weight.mul_(weight.shape[-4] ** 0.5 / norm)
        weight.sub_(orthogonalised(direction.flatten(-3)).view_as(direction) * lr)

    def step_sgd(self, weight: Tensor, peak: float, fraction: float | Tensor) -> None:
        """One step of a matrix, a vector or a number, at a fraction of its peak rate."""
        if peak == 0:
            return
        gradient = weight.grad + self.decay / peak * weight
        weight.sub_(self.moved(weight, gradient, self.sgd_momentum) * (peak * fraction))


def orthogonalised(matrix: Tensor) -> Tensor:
    """Matrices (..., m, n) with the singular vectors of `matrix` and singular values near 1.

    The Newton-Schulz iteration x <- a x + (b s + c s s) x, s = x x^T, from x = matrix / |matrix|.
    """
    a, b, c = COEFFICIENTS
    x = matrix / (matrix.square().sum((-2, -1), keepdim=True).sqrt() + 1e-7)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    for _ in range(STEPS):
        s = x @ x.mT
        x = a * x + (b * s + c * (s @ s)) @ x
    return x.mT if tall else x
