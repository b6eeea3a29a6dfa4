"""Integrate-and-fire neurons over all time steps of one call. No state is kept between calls: no
forgotten reset can carry one batch into the next, and vmap, grad, deepcopy, pickle and compilation
work as for any function.

Sources: Bojkovic et al. 2024 (conversion, boxcar), Mukhoty et al. 2023 (LocalZO), Guan et al. 2025.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

# (v, theta, amplitude) -> d spk / d v, v = mem - theta
Surrogate = Callable[[Tensor, Tensor, Tensor], Tensor]
RESETS = ("soft", "hard")


def boxcar(v: Tensor, theta: Tensor, amplitude: Tensor, *, width: float = 0.5) -> Tensor:
    """d out / d mem = 1 where |v| < width * theta, else 0. At width 1/2 the area equals the jump
    theta.

    The code released with Guan et al. 2025 uses width = 0.5 / T, a window that shrinks with the
    number of time steps.
    """
    return (v.abs() < width * theta).to(v.dtype) / amplitude


def local_zo(
    v: Tensor,
    theta: Tensor,
    amplitude: Tensor,
    *,
    delta: float = 0.5,
    samples: int = 0,
) -> Tensor:
    """Zeroth-order surrogate of Mukhoty et al. 2023: the mean over standard normal z of
    |z| / (2 delta) where |v| < delta |z|, else 0.

    samples = 0: the closed form of the expectation, g(v) = (1 / delta) int_{|v| / delta}^inf z
    density(z) dz. samples = 5 is the released setting and draws from torch's global generator.
    """
    if samples == 0:
        u = v.abs() / delta
        return (u.square() * -0.5).exp() / math.sqrt(2 * math.pi) / delta
    total = torch.zeros_like(v)
    for _ in range(samples):  # one draw at a time: memory does not grow with samples
        z = torch.randn_like(v).abs()
        total += torch.where(v.abs() < delta * z, z, 0.0)
    return total / (2 * delta * samples)


def atan(v: Tensor, theta: Tensor, amplitude: Tensor, *, alpha: float = 2.0) -> Tensor:
    """(alpha / 2) / (1 + (pi alpha v / 2)^2)."""
    return alpha / 2 / (1 + (math.pi / 2 * alpha * v).square())


def fast_sigmoid(v: Tensor, theta: Tensor, amplitude: Tensor, *, k: float = 25.0) -> Tensor:
    """1 / (1 + k |v|)^2."""
    return 1 / (1 + k * v.abs()).square()


def triangular(v: Tensor, theta: Tensor, amplitude: Tensor, *, k: float = 1.0) -> Tensor:
    """k max(0, 1 - k |v|), of area 1."""
    return k * (1 - k * v.abs()).clamp(min=0)


def from_snntorch(v: Tensor, theta: Tensor, amplitude: Tensor, *, function: Callable) -> Tensor:
    """The derivative of any callable of snntorch.surrogate, in v's dtype (they compute in float32).

    Raises ValueError inside torch.func transforms, which such callables do not support.
    """
    if transformed():
        raise ValueError(
            "a surrogate of snntorch does not work under torch.func (vmap, grad): use local_zo,"
            " boxcar or atan"
        )
    with torch.enable_grad():
        leaf = v.detach().float().requires_grad_()
        return torch.autograd.grad(function(leaf).sum(), leaf)[0].to(v.dtype)


SURROGATES = {
    "boxcar": boxcar,
    "local_zo": local_zo,
    "atan": atan,
    "fast_sigmoid": fast_sigmoid,
    "triangular": triangular,
}


def surrogate(name: str, **options: Any) -> Surrogate:
    """A surrogate by name with its options bound; "snntorch:atan" is that of snntorch.surrogate.
    ValueError if unknown.
    """
    if name.startswith("snntorch:"):
        import snntorch.surrogate

        make = getattr(snntorch.surrogate, name.removeprefix("snntorch:"), None)
        if make is None:
            raise ValueError(f"surrogate {name!r}: snntorch.surrogate has no such function")
        return partial(from_snntorch, function=make(**options))
    if name not in SURROGATES:
        raise ValueError(
            f"surrogate {name!r} is not one of {', '.join(SURROGATES)}, or snntorch:NAME"
        )
    bound = partial(SURROGATES[name], **options)
    try:
        bound(torch.zeros(1), torch.ones(1), torch.ones(1))
    except TypeError as error:
        raise ValueError(f"surrogate_args={options} do not fit {name}: {error}") from error
    return bound


def transformed() -> bool:
    """True inside torch.func transforms."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def fire(v: Tensor, theta: Tensor, amplitude: Tensor, surrogate: Surrogate) -> Tensor:
    """H(v) with the surrogate as its derivative; fires at v = 0.

    Written as H(v) + (v - stop(v)) g(stop(v)), since the gradient of a custom autograd function is
    silently lost when a vmapped forward is compiled. First derivatives only.
    """
    spk = (v >= 0).to(v.dtype)
    if not torch.is_grad_enabled():
        return spk
    fixed = v.detach()
    return spk + (v - fixed) * surrogate(fixed, theta.detach(), amplitude.detach())


def step(
    x: Tensor,
    mem: Tensor,
    theta: Tensor,
    amplitude: Tensor,
    beta: float = 1.0,
    reset: str = "soft",
    surrogate: Surrogate = boxcar,
    detach_reset: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """One time step: (out, mem after the reset, mem before it).

    Arguments are those of `multistep`; theta, amplitude and the first mem come from `placed`.
    """
    # x is cast, since a mem without axes would not widen the sum
    charged = (mem if beta == 1 else beta * mem) + x.to(theta.dtype)
    spk = fire(charged - theta, theta, amplitude, surrogate)
    back = spk.detach() if detach_reset else spk
    after = charged - theta * back if reset == "soft" else charged * (1 - back)
    return amplitude * spk, after, charged


def multistep(
    x: Tensor,
    theta: Tensor | float,
    u0: Tensor | float,
    *,
    amplitude: float | None = None,
    beta: float = 1.0,
    reset: str = "soft",
    surrogate: Surrogate = boxcar,
    detach_reset: bool = True,
    return_mem: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Integrate and fire over x (T, B, ...): returns out (T, B, ...) in x's dtype; with return_mem
    also the potentials before reset.

        mem = u0;  for each t:  mem = beta mem + x[t];  spk = H(mem - theta);  out[t] = amplitude
        spk; mem = mem - theta spk (reset "soft")  or  mem (1 - spk) (reset "hard")

    beta = 1 is an IF neuron, beta < 1 a LIF neuron. theta > 0 and u0: numbers, or (C,) for x
    (T, B, C, ...). amplitude None means theta, as in conversion. detach_reset: no gradient through
    the spike in the reset (False as in the code of LocalZO). The potential has theta's dtype where
    that is the wider one. Neurons of snntorch differ: they do not fire on mem = theta, and for beta
    < 1 they subtract theta after the decay, while here the residual decays.
    """
    theta, u0, amplitude = placed(x, theta, u0, amplitude)
    if not (return_mem or torch.is_grad_enabled() or transformed()):
        return _in_place(x, theta, u0, amplitude, beta, reset)
    outs = []
    mems = []
    mem = u0
    for x_t in x.unbind(0):
        out, mem, charged = step(x_t, mem, theta, amplitude, beta, reset, surrogate, detach_reset)
        outs.append(out.to(x_t.dtype))
        if return_mem:
            mems.append(charged)
    # cat, not stack: it keeps the channels-last order of its parts
    out = torch.cat(outs).unflatten(0, (len(outs), -1))
    if not return_mem:
        return out
    return out, torch.cat(mems).unflatten(0, (len(mems), -1))


def placed(
    x: Tensor, theta: Tensor | float, u0: Tensor | float, amplitude: Tensor | float | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """theta, u0 and amplitude, numbers or (C,), as tensors that broadcast to x[t] (B, C, ...), in
    the wider dtype of x and theta.
    """
    dtype = torch.promote_types(x.dtype, theta.dtype) if isinstance(theta, Tensor) else x.dtype

    def as_tensor(value: Tensor | float) -> Tensor:
        if not isinstance(value, Tensor):
            value = torch.full((), value, device=x.device)  # no copy that waits for the device
        elif value.ndim == 1:
            value = value.view(-1, *[1] * (x.ndim - 3))
        return value.to(dtype)

    return as_tensor(theta), as_tensor(u0), as_tensor(theta if amplitude is None else amplitude)


def _in_place(
    x: Tensor, theta: Tensor, u0: Tensor, amplitude: Tensor, beta: float, reset: str
) -> Tensor:
    """`multistep` without a gradient: the same bits in a third of the passes over memory. theta, u0
    and amplitude come from `placed`.
    """
    out = _empty_outputs(x)
    mem = torch.empty_like(x[0], dtype=theta.dtype).copy_(u0)
    # kernels that mix dtypes are slow: where x is narrower than the potential, spikes are computed
    # in the potential's dtype and rounded at the end
    buffer = torch.empty_like(mem) if out.dtype != mem.dtype else None
    for x_t, out_t in zip(x, out, strict=True):
        spk = out_t if buffer is None else buffer
        if beta != 1:
            mem.mul_(beta)
        mem.add_(x_t)
        torch.ge(mem, theta, out=spk)
        mem.addcmul_(theta if reset == "soft" else mem, spk, value=-1)
        spk.mul_(amplitude)
        if buffer is not None:
            out_t.copy_(buffer)
    return out


def _empty_outputs(x: Tensor) -> Tensor:
    """An empty tensor (T, B, ...) for the outputs of x, in the memory order of its steps."""
    order = sorted(range(x.ndim - 1), key=x[0].stride, reverse=True)  # keeps channels last
    size = (len(x) * x.shape[1], *x.shape[2:])
    outputs = torch.empty_permuted(size, order, dtype=x.dtype, device=x.device)
    return outputs.unflatten(0, x.shape[:2])
