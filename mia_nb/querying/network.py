"""The answers of one network to all images, query by query, and the random draws behind them:
masks, augmentation and noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mia_nb import data, defenses, models
from mia_nb.models import neural_de, recording, snn, timesteps
from mia_nb.models.modules import DROPOUT
from mia_nb.models.snn import cumulative
from mia_nb.models.solvers import BACKENDS, draw
from mia_nb.training.plans import DTYPES
from mia_nb.training.seeds import mix
from mia_nb.types import Images, Signals

# samples that share a seed, in data order, so that draws do not depend on the batch size
BLOCK = 256


class QueriedNetwork(NamedTuple):
    """A network, and how it is queried."""

    run: Callable[[Tensor], Tensor]  # normalised images -> logits, as `forward` gives them
    model: int  # the network's row in the pool
    dtype: torch.dtype  # of the images
    steps: int | None  # time steps of a spiking network
    settings: dict  # of the query, as `plan.settings_and_kind` gives them


def outputs(
    module: nn.Module, images: Images, model: int, settings: dict, dtype: str, batch: int
) -> np.ndarray:
    """(Q, N, K) logits of one model."""
    module = prepare(module.eval(), settings["noise"])
    run = partial(forward, module, dtype, per_step=settings.get("per_step"))
    network = QueriedNetwork(run, model, DTYPES[dtype], timesteps(module), settings)
    if any(block.solver["method"] in BACKENDS for _, block in neural_de.flow_blocks(module)):
        batch = BLOCK  # these solvers choose steps or noise for a batch as a whole
    logits = _logits(network, images, batch)
    output = settings.get("output")
    if output is None:
        return logits
    random_logits = None
    if defenses.OUTPUTS[output].random:
        random_images = _random_images(images, settings["seed"])
        random_logits = _logits(network, random_images, batch)
    return defenses.change_output(output, logits, random_logits, **settings["output_args"])


def _logits(network: QueriedNetwork, images: Images, batch: int) -> np.ndarray:
    """(Q, N, K) answers to these images, query by query; of a query per time step, whose steps
    stand in the queries' place, (T, N, K).
    """
    queries = network.settings["queries"]
    first = _logits_of_query(network, images, 0, batch)
    if network.settings.get("per_step"):  # there is one query only
        return first.cpu().numpy()
    all_logits = first.new_empty(queries, *first.shape)
    all_logits[0] = first
    for q in range(1, queries):
        all_logits[q] = _logits_of_query(network, images, q, batch)
    return all_logits.cpu().numpy()  # only here does the CPU wait for a GPU


def _random_images(images: Images, seed: int) -> Images:
    """As many images, with pixels drawn uniformly."""
    generator = torch.Generator().manual_seed(mix(seed, "random images"))
    x = torch.randint(0, 256, images.x.shape, generator=generator, dtype=torch.uint8)
    return images._replace(x=x.to(images.x.device))


def activity_names(module: snn.SNN) -> list[str]:
    """The columns of `layer_activity`."""
    answers = [f"answer {step}" for step in range(1, module.timesteps)]
    return [*answers, *recording.activity_names(module)]


def layer_activity(
    module: snn.SNN, images: Images, settings: dict, dtype: str, batch: int
) -> np.ndarray:
    """(1, N, F) float32: the margins of the network's answers after each step but the last, and
    the activity of its layers.
    """
    answers = []  # (T, B, K) of each part of the images
    activities = []  # (B, columns)
    part = max(1, batch // module.timesteps)
    with torch.inference_mode():
        for pixels in images.x.split(part):
            x = data.normalise(pixels, images.mean, images.std, DTYPES[dtype])
            steps, activity = recording.activity(module, x)
            answers.append(cumulative(steps.double(), module.readout))
            activities.append(activity)
    logits = torch.cat(answers, 1).cpu().numpy()
    labels = images.y.cpu().numpy()
    signals = Signals.from_logits(logits[None], labels, temperature=settings["temperature"])
    early_margins = signals.margin[0, :-1].T  # the last answer is the plain query's
    columns = np.concatenate([early_margins, torch.cat(activities).cpu()], axis=1)
    return columns.astype(np.float32)[None]


def prepare(module: nn.Module, noise: bool | None) -> nn.Module:
    """The network with its noise switched on (True) or off (False); with None dropout layers are
    off, and SDE blocks stay as they were built.
    """
    for layer in module.modules():
        if isinstance(layer, DROPOUT):
            layer.train(noise is True)
    return neural_de.set_noise(module, noise)


def forward(module: nn.Module, dtype: str, x: Tensor, per_step: str | None = None) -> Tensor:
    """Logits of images or of events (T, B, C, H, W).

    per_step: None gives (B, K) for all time steps together; "cumulative" (T, B, K) after each
    number of steps, "instant" (T, B, K) of each step alone.
    """
    if x.ndim == 5 and getattr(module, "time_axis", 0) == 1:
        x = x.transpose(0, 1)
    with (
        torch.inference_mode(),
        torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == "bfloat16"),
    ):
        if per_step is None:
            return module(x)
        instant = module(x, per_step=True)
        if per_step == "cumulative":
            readout = getattr(module, "readout", "mean")
            return cumulative(instant.to(DTYPES[dtype]), readout)
        return instant


def _logits_of_query(network: QueriedNetwork, images: Images, q: int, batch: int) -> Tensor:
    """(N, K) logits of query q in float64, or (T, N, K) per step, on the device of the images.

    Random numbers are drawn for whole blocks of images. A spiking network gets fewer images at a
    time, so that images times time steps make up `batch` rows. Nothing here waits for a GPU.
    """
    settings = network.settings
    seed = settings["seed"]
    logits = []
    samples = len(images.y)
    part = max(1, batch // (network.steps or 1))
    mask_steps = network.steps if settings.get("mask_scope") == "step" else None
    for start in range(0, samples, batch):
        stop = min(start + batch, samples)
        x = images.x[start:stop]
        blocks = range(start // BLOCK, math.ceil(stop / BLOCK))
        sizes = [min(BLOCK, samples - block * BLOCK) for block in blocks]
        seeds = [(seed, q, block) for block in blocks]  # the same for all models
        if settings["augment"] and q > 0:
            x = _augmented(x, settings["augment"], sizes, seeds)
        x = data.normalise(x, images.mean, images.std, network.dtype)
        if settings["input_dropout"]:
            p = settings["input_dropout"]
            x = x * _masks(x, p, sizes, seeds, mask_steps, images.frames)
        if settings["noise"]:
            noise_seeds = [(seed, network.model, q, block) for block in blocks]
            logits.append(noisy(network.run, x, sizes, noise_seeds))
        else:
            # images (B, C, H, W), or with a mask for each time step (T, B, C, H, W)
            logits += [network.run(images_now) for images_now in x.split(part, dim=-4)]
    return torch.cat(logits, dim=-2).double()


def _augmented(x: Tensor, ops: str, sizes: list[int], seeds: list[tuple]) -> Tensor:
    """Augmented images (B, C, H, W); each block has its own draws."""
    draws = []
    for size, words in zip(sizes, seeds, strict=True):
        generator = torch.Generator().manual_seed(mix(*words, "augment"))
        draws.append(data.augment_draws(ops, size, *x.shape[2:], generator))
    joined = {}
    for name in draws[0]:
        parts = [of_block[name] for of_block in draws]
        if name == "operations":  # of AutoAugment, by which the CPU sorts the images
            joined[name] = torch.cat(parts)
        else:
            joined[name] = _cat_to_device(parts, 0, x)
    return data.apply_augment(x, joined)


def _cat_to_device(parts: list[Tensor], axis: int, x: Tensor) -> Tensor:
    """Tensors drawn on the CPU, joined along an axis; copied to the device of x without waiting."""
    joined = torch.cat(parts, axis)
    if x.is_cuda:
        joined = joined.pin_memory()
    return joined.to(x.device, non_blocking=True)


def _masks(
    x: Tensor,
    p: float,
    sizes: list[int],
    seeds: list[tuple],
    steps: int | None = None,
    frames: int = 1,
) -> Tensor:
    """Dropout masks 1[u > p] for images x (B, C, H, W), drawn on the CPU for every device.

    With `steps` there is a mask for each time step, (steps, B, C, H, W). Frames of events are time
    steps already: their masks are (B, frames * C, H, W), the same for all frames without `steps`,
    and another for each frame with them.
    """
    channels = x.shape[1] // frames
    parts = []
    for size, words in zip(sizes, seeds, strict=True):
        generator = torch.Generator().manual_seed(mix(*words, "mask"))
        shape = (steps or 1, size, channels, *x.shape[2:])
        parts.append(torch.rand(shape, generator=generator) > p)
    masks = _cat_to_device(parts, 1, x).to(x.dtype)  # (steps or 1, B, channels, H, W)
    if frames > 1:
        masks = masks.expand(frames, *masks.shape[1:])
        return masks.transpose(0, 1).flatten(1, 2)
    return masks if steps else masks[0]


def noisy(
    run: Callable[[Tensor], Tensor], x: Tensor, sizes: list[int], seeds: list[tuple]
) -> Tensor:
    """Logits of images whose noise is seeded block by block.

    Parameters:
        run: the network.
        x: normalised images.
        sizes: number of images in each block.
        seeds: for each block, the words that seed its noise.

    SDE blocks draw from a generator for each block of images. All other noise comes from torch's
    global generator, which `query` restores at its end, and then x is a single block.
    """
    numbers = [mix(*words, "noise") for words in seeds]
    models.seed_global_generator(numbers[0], x.device)
    generators = [torch.Generator(x.device).manual_seed(number) for number in numbers]
    with NoiseOfBlocks(generators, sizes):
        return run(x)


class NoiseOfBlocks(TorchFunctionMode):
    """A context in which torch.randn_like draws each block of rows from a generator of its own.

    The noise of a block of images is thus the same, however many blocks one forward pass holds.
    Only calls of this thread are affected.
    """

    def __init__(self, generators: list[torch.Generator], sizes: list[int]) -> None:
        """Take one generator per block, and the number of rows of each block."""
        super().__init__()
        self.generators = generators
        self.sizes = sizes

    def __torch_function__(
        self,
        function: Callable,
        types: Sequence[type],
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> Any:
        if function is not torch.randn_like:
            return function(*args, **(kwargs or {}))
        like = args[0]
        if len(self.sizes) == 1:  # of any length: torchsde's seed is drawn here too
            return draw(like, self.generators[0])
        blocks = zip(like.split(self.sizes), self.generators, strict=True)
        return torch.cat([draw(block, generator) for block, generator in blocks])
