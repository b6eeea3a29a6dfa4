"""Neural ODE and SDE classifiers: ODENet, ANODE, SONODE, HBNODE, SDENet.

Sources: Hong, Wu, Gruber and Lee (arXiv 2501.06686), "the study"; its architectures are those of
Oganesyan, Volokhova and Vetrov. ANODE: Dupont, Doucet and Teh (NeurIPS 2019); SONODE: Norcliffe et
al. (2020); HBNODE: Xia et al. (2021). The study does not state the steps of its Euler baseline (16
here), whether there is noise at inference, and which "stochastic RK4" it uses: all are arguments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from mia_nb.checks import known_options, one_of
from mia_nb.models import solvers
from mia_nb.models.lipschitz import conv_norm, local_lipschitz
from mia_nb.models.solvers import integrate

__all__ = [
    "ConcatConv2d",
    "Drift",
    "FlowBlock",
    "FlowNet",
    "describe",
    "flow_blocks",
    "integrate",
    "is_noisy",
    "local_lipschitz",
    "set_noise",
]

GAMMA = -3.0  # HBNODE: damping sigmoid(-3) = .0474
STARTS = ("conv", "zeros")  # of the velocity v, where the equation is of second order
NORMS = ("bn", "gn")  # batch norm, group norm
LAYOUTS = ("16-32-64", "64")
# attributes of a FlowBlock that `describe` gives
DESCRIBED = ("order", "damped", "noise_train", "noise_eval", "sigma", "noise_sd")


class ConcatConv2d(nn.Module):
    """A 3x3 convolution with bias of cat([t * ones, h]): h (B, before, H, W) -> (B, after, H, W).

    Computed as the sum of a convolution of h and one of the time channel: the same map and the same
    initial distribution without a copy of h (1.1 to 1.3 times as fast with its gradient), and hooks
    see every weight.
    """

    def __init__(self, before: int, after: int) -> None:
        super().__init__()
        self.state = nn.Conv2d(before, after, 3, padding=1, bias=False)
        self.time = nn.Conv2d(1, after, 3, padding=1)
        bound = 1 / math.sqrt(9 * (before + 1))  # torch's own for before + 1 channels
        for p in self.parameters():
            nn.init.uniform_(p, -bound, bound)

    def forward(self, t: float | Tensor, h: Tensor, scale: Tensor | None = None) -> Tensor:
        """The convolution of [t, h]; `scale` multiplies the part of h."""
        mapped = self.state(h)
        if scale is not None:
            mapped = scale * mapped
        # one time channel serves all images, except where gradients per sample may be wanted
        example = h[:, :1] if torch.is_grad_enabled() else h[:1, :1]
        if isinstance(t, Tensor):
            times = t * torch.ones_like(example)
        else:
            times = torch.full_like(example, t)  # a single kernel call
        return mapped + self.time(times)


class Drift(nn.Module):
    """f(t, h) = CC2(ReLU(CC1(ReLU(h)))): the study's drift, without normalisation.

    lipschitz=L: each convolution's weights on h are scaled by min(1, sqrt(L) / n), n their
    certified norm (`conv_norm`), so that |f(t, a) - f(t, b)| <= L |a - b|. The time channel is
    constant in h and not scaled.
    """

    def __init__(self, before: int, after: int, lipschitz: float | None = None) -> None:
        super().__init__()
        self.first = ConcatConv2d(before, after)
        self.second = ConcatConv2d(after, after)
        self.lipschitz = lipschitz

    def scales(self, size: tuple[int, int]) -> tuple[Tensor | None, Tensor | None]:
        """Factors of the two convolutions for states of this height and width, the same at every
        step of a solution.
        """
        if self.lipschitz is None:
            return None, None
        bound = math.sqrt(self.lipschitz)
        first, second = self._certified_norms(size)
        # min(1, bound / norm) without a division by 0
        return bound / first.clamp(min=bound), bound / second.clamp(min=bound)

    def _certified_norms(self, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        """Certified norms of the two convolutions of h, for states of this height and width."""
        first = conv_norm(self.first.state.weight, *size)
        second = conv_norm(self.second.state.weight, *size)
        return first, second

    def certified_lipschitz(self, size: tuple[int, int]) -> float:
        """Certified upper bound of the Lipschitz constant in h after scaling, for states of this
        height and width.
        """
        with torch.no_grad():
            bound = 1.0
            for norm, scale in zip(self._certified_norms(size), self.scales(size), strict=True):
                bound = bound * norm
                if scale is not None:
                    bound = bound * scale
            return float(bound)

    def forward(
        self, t: float | Tensor, h: Tensor, scales: Sequence[Tensor | None] | None = None
    ) -> Tensor:
        """f(t, h); `scales` are those of `scales(size)`, computed here if they are None."""
        if scales is None:
            scales = self.scales(h.shape[-2:])
        first_scale, second_scale = scales
        inner = relu(self.first(t, relu(h), first_scale))
        return self.second(t, inner, second_scale)


class Damping(nn.Module):
    """v -> sigmoid(gamma) v, gamma learned from -3.

    A module of its own, so that hooks for gradients per sample see gamma.
    """

    def __init__(self) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor(GAMMA))

    def forward(self, v: Tensor) -> Tensor:
        return torch.sigmoid(self.gamma) * v


class FlowBlock(nn.Module):
    """h(t0) (B, channels, H, W) -> h(t0 + T) of a differential equation with a learned drift.

    Parameters:
        channels: of the state that enters; the result has channels + augment.
        t0: the time at which integration begins.
        steps: number of steps of a fixed-step solver, from 1.
        T: integration time, above 0.
        method: of `solvers.integrate`.
        k: standard deviation of the noise added to the whole state after each step, from 0.
        order: 1: h' = f(t, h). 2: h' = v, v' = f(t, [h, v]) (SONODE).
        damped: with order 2: v' = f(t, h) - sigmoid(gamma) v, gamma learned from -3 (HBNODE).
        augment: number of zero channels appended at the start, which stay in the result (ANODE).
        start: v(t0) with order 2: "conv", a small convolutional net of h, or "zeros".
        noise_train, noise_eval: whether noise is on in training and in evaluation mode.
        lipschitz: Lipschitz bound of the drift (order 1); None: no bound.
        clip: largest norm of h(t0), image by image; None: no limit.
        rtol, atol: options of adaptive solvers.

    Attributes: `.sigma` = k sqrt(steps / T), `.noise_sd` = k sqrt(steps).

    Raises:
        ValueError: for settings that make no sense; in training without the noise that the block
            was built with; where Opacus' hooks would make wrong gradients per sample (with
            lipschitz or a library's solver).
    """

    def __init__(
        self,
        channels: int,
        *,
        steps: int = 16,
        T: float = 1.0,
        t0: float = 0.0,
        method: str = "euler",
        k: float = 0.0,
        order: int = 1,
        damped: bool = False,
        augment: int = 0,
        start: str = "conv",
        noise_train: bool = True,
        noise_eval: bool = True,
        lipschitz: float | None = None,
        clip: float | None = None,
        rtol: float = 1e-3,
        atol: float = 1e-3,
    ) -> None:
        super().__init__()
        solvers.check(steps=steps, T=T, method=method, k=k, rtol=rtol, atol=atol)
        _check_equation(order, damped, augment, start, lipschitz, clip)
        self.solver = {
            "steps": steps,
            "T": T,
            "t0": t0,
            "method": method,
            "rtol": rtol,
            "atol": atol,
        }
        self.k = k
        self.order = order
        self.damped = damped
        self.augment = augment
        self.clip = clip
        self.noise_train = noise_train
        self.noise_eval = noise_eval
        self.forced: bool | None = None  # by `set_noise`
        wide = channels + augment
        self.out_channels = wide
        sees_velocity = order == 2 and not damped
        self.drift = Drift(2 * wide if sees_velocity else wide, wide, lipschitz)
        if damped:
            self.damping = Damping()
        self.start = None  # the net that gives v(t0), or None for zeros
        if order == 2 and start == "conv":
            self.start = nn.Sequential(
                nn.Conv2d(wide, wide, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(wide, wide, 3, padding=1),
            )

    @property
    def sigma(self) -> float:
        """k sqrt(steps / T), the diffusion coefficient."""
        from mia_nb.accounting import nsde_sigma  # here, as it takes 0.1 s to import

        return nsde_sigma(k=self.k, steps=self.solver["steps"], T=self.solver["T"])

    @property
    def noise_sd(self) -> float:
        """k sqrt(steps), the standard deviation of the noise in h(T) where the drift is 0."""
        from mia_nb.accounting import noise_sd

        return noise_sd(k=self.k, steps=self.solver["steps"])

    def adds_noise(self) -> bool:
        """Whether the next forward adds noise: `set_noise` decides, else the option for this mode.
        ValueError in training without the noise that the block was built with.
        """
        if self.k == 0:
            return False
        if self.training and self.noise_train and self.forced is False:
            raise ValueError(
                f"noise is switched off, but this block trains with it (k={self.k},"
                " noise_train=True): call set_noise(model, None) before training, or build the"
                " model with noise_train=False"
            )
        if self.forced is not None:
            return self.forced
        return self.noise_train if self.training else self.noise_eval

    def field(
        self, t: float | Tensor, state: Tensor, scales: Sequence[Tensor | None] | None = None
    ) -> Tensor:
        """Time derivative of the whole state: h, or [h, v] along the channels."""
        if self.order == 1:
            return self.drift(t, state, scales)
        h, v = state.chunk(2, 1)
        if not self.damped:
            return torch.cat([v, self.drift(t, state)], 1)
        return torch.cat([v, self.drift(t, h) - self.damping(v)], 1)

    def forward(self, h: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """h(t0 + T) (B, out_channels, H, W); noise from the generator, else from torch's global
        one.
        """
        return self.solutions(h, 1, generator)[0]

    def solutions(
        self, h: Tensor, number: int, generator: torch.Generator | None = None
    ) -> list[Tensor]:
        """This number of results of `forward` for the same states, one after another."""
        self._check_gradients_per_sample()
        h = self.entering(h)
        if self.order == 2:
            v = torch.zeros_like(h) if self.start is None else self.start(h)
            h = torch.cat([h, v], 1)
        field = self.field
        # the scales are computed once, not once a step
        if self.drift.lipschitz is not None:
            field = partial(self.field, scales=self.drift.scales(h.shape[-2:]))
        k = self.k if self.adds_noise() else 0.0
        solve = partial(integrate, field, h, **self.solver, k=k, generator=generator)
        ends = [solve() for _ in range(number)]
        return [end.chunk(2, 1)[0] for end in ends] if self.order == 2 else ends

    def entering(self, h: Tensor) -> Tensor:
        """The state at t0: h, clipped and with its extra channels."""
        if self.clip is not None:
            h = solvers.widened(h)  # a norm rounded to half precision could exceed the bound
            norm = h.flatten(1).norm(dim=1).clamp(min=self.clip)
            h = h * (self.clip / norm).view(-1, 1, 1, 1)
        if self.augment:
            zeros = torch.zeros_like(h[:, :1]).expand(-1, self.augment, -1, -1)
            h = torch.cat([h, zeros], 1)
        return h

    def _check_gradients_per_sample(self) -> None:
        """Refuse gradients per sample where they would silently be wrong."""
        if not any(hasattr(p, "grad_sample") for p in self.parameters()):  # put there by Opacus
            return
        method = self.solver["method"]
        wrong = ""
        if method in solvers.BACKENDS:
            # hooks count drift calls of rejected or unused steps, which have no backward pass
            wrong = f"method={method!r}"
        elif self.drift.lipschitz is not None:
            # the scales depend on the weights, which hooks do not see
            wrong = "lipschitz"
        if wrong:
            raise ValueError(
                f"{wrong} gives wrong gradients per sample, which DP-SGD needs: build the block"
                " without it"
            )


def _check_equation(
    order: int, damped: bool, augment: int, start: str, lipschitz: float | None, clip: float | None
) -> None:
    """ValueError for settings of an equation that make no sense together."""
    if order not in (1, 2) or (damped and order != 2):
        raise ValueError(
            f"order={order}, damped={damped}: wanted order 1, order 2 (SONODE), or order 2 and"
            " damped (HBNODE)"
        )
    if augment < 0 or (augment and order == 2):
        raise ValueError(
            f"augment={augment} with order={order}: wanted channels from 0 up, and order 1 where"
            " there are any"
        )
    one_of("start", start, STARTS)
    if lipschitz is not None and (not lipschitz > 0 or order == 2):
        raise ValueError(
            f"lipschitz={lipschitz} with order={order}: wanted a positive bound, and order 1"
        )
    if clip is not None and not clip > 0:
        raise ValueError(f"clip={clip}: wanted a positive norm")


def _norm(kind: str, channels: int) -> nn.Module:
    """The normalisation of this kind, a word of NORMS."""
    if kind == "bn":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(math.gcd(8, channels), channels)


def _down(kind: str, before: int, after: int) -> nn.Sequential:
    """Layers that halve height and width; the norm is of this kind."""
    return nn.Sequential(
        _norm(kind, before), nn.ReLU(), nn.Conv2d(before, after, 3, 2, 1, bias=False)
    )


class FlowOptions(TypedDict, total=False):
    """Options of every `FlowBlock` of a network, with their meaning there."""

    steps: int
    T: float
    method: str
    k: float
    order: int
    damped: bool
    start: str
    noise_train: bool
    noise_eval: bool
    lipschitz: float | None
    clip: float | None
    rtol: float
    atol: float


class FlowNet(nn.Module):
    """Images (B, in_channels, H, W) -> logits (B, num_classes) with flows where a ResNet-14 has
    groups of residual blocks.

    Parameters:
        in_channels: channels of an image.
        num_classes: how many logits there are.
        layout: "16-32-64": stem (stride 2), flow of `width` channels, down to 2 width, flow, down
            to 4 width, flow, mean, linear: the skeleton of `models.cnn.ResNet14`. "64": stem and
            two downs, all of 2 width channels, then one group of flows.
        width: channels of the first flow; with "64" half of them.
        blocks: number of flows in a group, one after another on [0, T], [T, 2T], ..., each with its
            own weights.
        norm: "bn", or "gn" (group norm uses no batch statistics, as gradients per sample need).
        augment: channels that a group's first block appends.
        **flow: steps, T, method, k, order, damped, start, noise_train, noise_eval, lipschitz, clip,
            rtol, atol, as for `FlowBlock`.

    Named forms: odenet, odenet64, anode, sonode, hbnode, sdenet (k = .5, sigma 2). 486,122
    parameters at the defaults and 10 classes. Raises ValueError as `FlowBlock` does.
    """

    option_names = tuple(FlowOptions.__annotations__)

    def __init__(
        self,
        in_channels: int = 3,
        num_classes: int = 10,
        *,
        layout: str = "16-32-64",
        width: int = 32,
        blocks: int = 1,
        norm: str = "bn",
        augment: int = 0,
        **flow: Unpack[FlowOptions],
    ) -> None:
        super().__init__()
        known_options("FlowNet", flow, FlowOptions.__annotations__)
        one_of("layout", layout, LAYOUTS)
        one_of("norm", norm, NORMS)
        if blocks < 1 or width < 1:
            raise ValueError(f"blocks={blocks}, width={width}: wanted both from 1 up")
        self.layout = layout
        self.flow_at_each_width = layout == "16-32-64"
        self.blocks = blocks
        self.norm = norm
        if self.flow_at_each_width:
            first = width
            widths_after = (2 * width, 4 * width)
        else:
            first = 2 * width
            widths_after = (first, first)
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, first, 3, 2, 1, bias=False), _norm(norm, first), nn.ReLU()
        )
        self.groups = nn.ModuleList()
        downs = []
        channels = first
        for after in widths_after:
            if self.flow_at_each_width:
                self.groups.append(_flows(channels, blocks, augment, flow))
                channels = self.groups[-1][-1].out_channels
            downs.append(_down(norm, channels, after))
            channels = after
        self.downs = nn.ModuleList(downs)
        self.groups.append(_flows(channels, blocks, augment, flow))
        self.head = nn.Linear(self.groups[-1][-1].out_channels, num_classes)

    def forward(self, x: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Logits (B, num_classes); noise from the generator, else from torch's global one."""
        h = self.stem(x)
        for number, down in enumerate(self.downs):
            if self.flow_at_each_width:
                h = _through(self.groups[number], h, generator)
            h = down(h)
        return self.head(_through(self.groups[-1], h, generator).mean((-2, -1)))


def _flows(channels: int, blocks: int, augment: int, flow: FlowOptions) -> nn.ModuleList:
    """One group: flows on [0, T], [T, 2T], ..."""
    group = [FlowBlock(channels, augment=augment, **flow)]
    for number in range(1, blocks):
        t0 = number * flow.get("T", 1.0)
        group.append(FlowBlock(channels + augment, t0=t0, **flow))
    return nn.ModuleList(group)


def _through(group: nn.ModuleList, h: Tensor, generator: torch.Generator | None) -> Tensor:
    """The state after the blocks of a group, one after another."""
    for block in group:
        h = block(h, generator)
    return h


def flow_blocks(module: nn.Module) -> Iterator[tuple[str, FlowBlock]]:
    """(name, block) of every FlowBlock."""
    for name, part in module.named_modules():
        if isinstance(part, FlowBlock):
            yield name, part


def set_noise(module: nn.Module, on: bool | None) -> nn.Module:
    """Force the noise of all FlowBlocks on or off in both modes.

    Parameters:
        module: any that holds FlowBlocks; it is returned.
        on: True, False, or None to use the blocks' own options again.
    """
    for _, block in flow_blocks(module):
        block.forced = on
    return module


def is_noisy(module: nn.Module) -> bool:
    """Whether a FlowBlock of this module was built to add noise in evaluation mode."""
    return any(block.k > 0 and block.noise_eval for _, block in flow_blocks(module))


def describe(module: nn.Module) -> dict | None:
    """The settings of a network's FlowBlocks by name, None if it has no block. All blocks share
    them, but for augment: only the first block of a group appends channels.
    """
    blocks = [block for _, block in flow_blocks(module)]
    if not blocks:
        return None
    block = blocks[-1]
    return {
        "norm": getattr(module, "norm", "bn"),
        "layout": getattr(module, "layout", "last"),
        "blocks": getattr(module, "blocks", 1),
        "k": float(block.k),
        **{name: block.solver[name] for name in ("method", "steps", "T")},
        **{name: getattr(block, name) for name in DESCRIBED},
        "augment": max(block.augment for block in blocks),
        "lipschitz": block.drift.lipschitz,
        "clip": block.clip,
    }
