"""Ask every model of a pool about every image: pool x images -> Signals, cached, with checks that
doubt the outputs.
"""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from tqdm.auto import tqdm

from mia_nb import data, defenses, store
from mia_nb.checks import (
    checked,
    instance,
    row_numbers,
    whole,
)
from mia_nb.models import BASES, FLOWS, architecture, neural_de, recording, snn, timesteps
from mia_nb.models.snn import cumulative
from mia_nb.models.solvers import BACKENDS, BlownUp, Draws
from mia_nb.training.execution import cores, device_of
from mia_nb.training.loop import DTYPES, build, fitting, mix
from mia_nb.training.pool import Pool
from mia_nb.training.work import threads, useful_threads
from mia_nb.types import Images, Query, Signals

DROPOUT = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
CACHED = "signals {}: {} models x {} queries x {} samples, cached\n"
BLOCK = 256  # samples that share a seed, in data order: draws do not depend on the batch size
VALUES = 2**17  # pixels asked together: small operations mostly wait for each other


@checked
def query(
    pool: Pool,
    images: Images,
    *,
    models: Sequence[int] | None = None,
    batch: int | None = None,
    device: str | None = None,
    progress: bool = True,
    force: bool = False,
    **options,
) -> Signals:
    """Signals of the pool's models (M or len(models), Q, N) on the images, kept in the store beside
    the pool.

    models: rows of the pool that are queried, None for all; batch: images in one forward pass;
    options: fields of `types.Query`, as follows.

    input_dropout p: x_q = x * 1[u > p] per element, after normalisation, unscaled, the same masks
    for all models (Guan et al. 2025, Algorithm 1). augment: query 0 is the plain image, the others
    follow the recipe's augmentation, or crop+flip where it has none, the same draws for all models.
    noise: None as built; True switches the noise of SDE blocks and dropout layers on, with fresh
    draws per (seed, model, query, block of samples), False off; an SDE built with noise at
    inference answers with it (draws "noise", or along with another); input encoded by random spikes
    is noise, and never off. temperature divides the logits. queries > 1 needs one of these sources.
    limit: only so many of the audited images, a fixed random choice, and as many of the population;
    never those that only a training defense saw (`pool.held_out`). A pool `at` an earlier epoch
    answers as it was then. output: a defense of `defenses.OUTPUTS` between attacker and models.
    Answers are written model by model: memory does not grow with them, and a killed query goes on.
    Arrays are read-only.

    Spiking networks only: mask_scope="step" drops other inputs at every time step, as the public
    code of Guan et al. does, which takes more than one submitted image ("query": one mask, held
    over time). per_step=True (or "cumulative"): the Q axis holds the time steps, entry t the answer
    after the first t, the last the plain query's; "instant": step t alone. That is a stronger
    attacker, to whom the service gives its output step by step. Spikes on a few images are kept
    beside it.

    Raises ValueError for outputs that cannot be trusted: wrong width, non-finite, the same for
    every sample, probabilities instead of logits, dependent on the companions in a batch (train
    mode left on), random without `noise`, not random with it. Caveat: membership is the pool's own
    mask where the images are its own; other images come back with member all False.
    """
    asked, device = Query(**options), device_of(device, here=False)
    rows, per_step = _rows(pool, models), asked.per_step
    per_step = "cumulative" if per_step is True else per_step
    output_args = asked.output_args
    if asked.output is not None or output_args:
        output_args = defenses.output_arguments(asked.output, output_args, len(images.classes))
    noise = _as_built(pool) if asked.noise is None else asked.noise
    # an SDE's noise goes along with what is done to the image; dropout layers' noise is a query
    # of its own
    damaged = asked.input_dropout or asked.augment
    draws = _source(asked, noise and not (_own_noise(pool) and damaged))
    if asked.mask_scope != "query" or per_step:
        _check_steps(pool, rows[0], asked)
    augment = pool.recipe.augment if pool.recipe.augment != "none" else "crop+flip"
    options = {
        "queries": asked.queries,
        "input_dropout": asked.input_dropout,
        "augment": asked.augment and augment,
        "noise": noise,
        "temperature": asked.temperature,
        "seed": asked.seed if draws not in ("plain", "steps") else 0,
        "models": rows,
        **_given(
            per_step=per_step,
            mask_scope=asked.mask_scope if asked.input_dropout else "query",
            limit=asked.limit,
            epoch=pool.epoch,
        ),
        **_given(output=asked.output, output_args=output_args),
    }
    folder, key = _place(pool, images, rows, options)
    ask = partial(
        _ask,
        pool,
        images,
        rows,
        options,
        draws,
        device,
        _together(pool, images, noise, batch),
        progress,
        folder,
    )
    with pool.folder.lock(f"signals-{key[:12]}"):
        signals = (None if force else _stored(folder, progress)) or _anew(
            pool, folder, key, options, force, ask
        )
        _record(folder, pool, images, signals, device)
    return signals


def _together(pool: Pool, images: Images, noise: bool | None, batch: int | None) -> int:
    """Images in one forward pass, in whole blocks: `batch`, or 512, of tiny ones more. Noisy
    answers do not depend on `batch`; the global generator takes one seed, and so one block at a
    time."""
    most = max(VALUES // images.x[0].numel() // BLOCK, 1) * BLOCK
    batch = max(most, 512) if batch is None else max(whole("batch", batch) // BLOCK, 1) * BLOCK
    return batch if not noise else most if _own_noise(pool) else BLOCK


def _anew(pool: Pool, folder: store.Folder, key: str, options: dict, force: bool, ask) -> Signals:
    """Ask; of a model that is refused nothing is left to go on with, as it would be refused
    again.
    """
    store.open_folder(
        pool.folder.path.parent, "signals", pool.folder.name, key, {"pool": pool.key, **options}
    )
    if force:
        store.drop_answers(folder)
    try:
        with folder.lock("query"):  # says to whoever cleans that this is in use
            ask()
            return store.load_signals(folder)
    except (
        store.Corrupt
    ):  # a damaged file of the pool says nothing against the models that answered
        raise
    except ValueError:
        if not store.has_signals(folder):
            folder.delete()
        raise


def _stored(folder: store.Folder, progress: bool) -> Signals | None:
    """What was answered before, if all of it is there and unaltered, with a line that says so."""
    with contextlib.suppress(store.Corrupt):
        signals = store.load_signals(folder)
        print(
            CACHED.format(folder.path.name, *signals.margin.shape) if progress else "",
            end="",
            flush=True,
        )
        return signals
    return None


def _record(folder: store.Folder, pool: Pool, images: Images, signals: Signals, device) -> None:
    """Write raster.npz beside answers step by step: the first model at work on a few audited
    images, if it can be.
    """
    if signals.draws != "steps" or folder.intact("raster.npz"):
        return
    samples = store.load_samples(folder)
    if samples is not None and not len(samples):  # images of others
        return
    columns = recording.evenly(np.flatnonzero(~signals.population))
    shown = torch.from_numpy(columns if samples is None else samples[columns]).to(images.x.device)
    x = data.normalise(
        images.x[shown].to(device), images.mean, images.std, DTYPES[pool.recipe.dtype]
    )
    # the answers are there: a picture of them is not worth failing for
    with contextlib.suppress(store.Corrupt, OSError):
        if kept := recording.recorded(pool.model(signals.info["models"][0]).to(device), x, columns):
            folder.write_arrays("raster.npz", kept)


def _place(pool: Pool, images: Images, rows: list[int], options: dict) -> tuple[store.Folder, str]:
    """Where these signals lie or would lie. The weights themselves are in the key: a pool trained
    anew by another strategy has others under the same pool key. Which machine asked is not: its
    answers differ by rounding only."""
    listed = pool.folder.files()
    key = store.content_key(
        {"pool": pool.key, **options},
        images.digest,
        *(listed.get(pool.weights_name(m), "") for m in rows),
    )
    return store.place(pool.folder.path.parent, "signals", pool.folder.name, key), key


def _as_built(pool: Pool) -> bool | None:
    """True for a pool that answers with noise of its own, None for any other."""
    return (
        pool.recipe.model in FLOWS and neural_de.is_noisy(build(pool.recipe, pool.images(), 0))
    ) or None


def _rows(pool: Pool, models: Sequence[int] | None) -> list[int]:
    return row_numbers("models", models, len(pool.member)).tolist()


def _check_steps(pool: Pool, model: int, asked: Query) -> None:
    """Refuse queries about time steps to a model that has none."""
    module = pool.model(model)
    if timesteps(module) is None:
        raise ValueError(
            f"mask_scope='step' and per_step are for spiking networks; {pool.recipe.model} answers"
            " once per image: use mask_scope='query', per_step=False"
        )
    if (
        asked.mask_scope == "step"
        and (encode := getattr(module, "encode", "constant")) != "constant"
    ):
        raise ValueError(
            f"mask_scope='step' masks what enters at each step, and encode={encode!r} makes that"
            " from one image: use mask_scope='query'"
        )


def _given(**options) -> dict:
    """Options that few questions have, written down only where they matter: other keys stay as they
    are.
    """
    return {
        name: value
        for name, value in options.items()
        if value is not None and value is not False and value != "query"
    }


def _source(asked: Query, noise: bool | None) -> str:
    """What makes the queries differ, one word of types.DRAWS; ValueError where nothing or more than
    one thing does.
    """
    sources = {
        "dropout": asked.input_dropout > 0,
        "augment": asked.augment,
        "noise": noise is True,
        "steps": bool(asked.per_step),
    }
    on, queries = [name for name, used in sources.items() if used], asked.queries
    if asked.per_step and (queries > 1 or len(on) > 1):
        raise ValueError(
            f"per_step with queries={queries} and {' and '.join(on[:-1]) or 'nothing random'}: the"
            " query axis holds the time steps then; ask one plain query"
        )
    if len(on) > 1:
        raise ValueError(f"{' and '.join(on)} at once: ask with one source of randomness at a time")
    if asked.augment and queries == 1:
        raise ValueError(
            "augment=True with queries=1 asks the plain image only: take more queries, or"
            " augment=False"
        )
    if queries > 1 and not on:
        raise ValueError(
            f"queries={queries} without input_dropout, augment or noise: all answers would be the"
            " same; use queries=1"
        )
    return on[0] if on else "plain"


def _ask(
    pool: Pool,
    images: Images,
    rows,
    options: dict,
    draws: str,
    device,
    batch: int,
    progress: bool,
    folder,
) -> None:
    """Write the answers of one model after the other, so that those of no more models than cores
    are in memory; with them which of the pool's images these are: none said for all, no number for
    images of others."""
    images, member, population, chosen = _asked_about(pool, images, options.get("limit"))
    there = images._replace(x=images.x.to(device_of(device)), y=images.y.to(device))
    quiet = not progress or os.environ.get("MIA_NB_MODE") == "batch"
    # on a CPU models side by side, one thread each: a network's own threads mostly wait for each
    # other. Dropout and the noise of models from elsewhere draw from the one global generator
    alone = device.type != "cpu" or (options["noise"] and not _own_noise(pool))
    left = [m for m in rows if store.kept_answers(folder, m) is None]
    side_by_side = 1 if alone else max(min(cores(), len(left)), 1)
    modules: queue.SimpleQueue[nn.Module] = queue.SimpleQueue()
    for _ in range(side_by_side):
        modules.put(module := pool.model(rows[0]).to(device))
        if device.type == "cpu" and timesteps(module) and _named(pool):  # others may view
            module.to(memory_format=torch.channels_last)
    labels = images.y.cpu().numpy()
    info = {
        "draws": draws,
        "pool": pool.key,
        **_family(pool, module),
        "dataset": images.name,
        **options,
    }

    def one(m: int) -> None:
        module = modules.get()
        try:
            pool.fill(module, m)
            logits = _answers(module, there, m, options, pool.recipe.dtype, batch)
        except BlownUp as error:
            raise ValueError(f"model {m}: {error}") from error
        finally:
            modules.put(module)
        try:
            answers = Signals.from_logits(
                logits[None], labels, temperature=options["temperature"], draws=draws
            )
        except ValueError as error:
            raise ValueError(str(error).replace("model 0 gives", f"model {m} gives")) from error
        store.keep_answers(folder, m, answers)

    count, given_back = (
        1 if side_by_side > 1 else torch.get_num_threads(),
        [device] if device.type == "cuda" else [],
    )
    with (
        threads(count),
        torch.random.fork_rng(devices=given_back),
        ThreadPoolExecutor(side_by_side) as executor,
    ):
        told = partial(
            tqdm, desc=f"asking {len(rows)} {pool.recipe.model}", unit="model", disable=quiet
        )
        try:
            list(told(executor.map(one, left), total=len(rows), initial=len(rows) - len(left)))
        except (
            BaseException
        ):  # the first bad answer, or an interrupt: the other models need not be asked
            executor.shutdown(cancel_futures=True)
            raise
    design = {"labels": labels, "member": member[rows], "population": population}
    store.join_answers(folder, rows, design, info, chosen)


def _asked_about(pool: Pool, images: Images, limit: int | None) -> tuple:
    """(images, member (M, N), population (N,), their numbers among the pool's images): None for
    all of these, none for images of others.
    """
    own = images.digest == pool.folder.read_json("images.json", digest=str)["digest"]
    member = pool.member if own else np.zeros((len(pool.member), len(images.y)), bool)
    population = pool.population if own else np.zeros(len(images.y), bool)
    secret = pool.held_out if own else np.zeros(len(images.y), bool)
    chosen = None
    if limit is not None or secret.any():
        chosen = _chosen(population, limit, secret)
        images = images._replace(x=images.x[chosen], y=images.y[chosen])
        member, population = member[:, chosen], population[chosen]
    return images, member, population, chosen if own else np.zeros(0, int)


def _chosen(population: np.ndarray, limit: int | None, secret: np.ndarray) -> np.ndarray:
    """Sample numbers in data order: `limit` of the audited ones and as many of the population, the
    same for all who ask, but those that are secret."""
    rng = np.random.default_rng(0)
    parts = (rng.permutation(np.flatnonzero(part))[:limit] for part in (~population, population))
    chosen = np.sort(np.concatenate(list(parts)))
    return chosen[~secret[chosen]]


def _own_noise(pool: Pool) -> bool:
    """Whether all noise of the pool's models is that of SDE blocks, which can be given a generator
    each.
    """
    return pool.recipe.model in FLOWS and _named(pool)


def _named(pool: Pool) -> bool:
    """Whether the pool's network, or the one that it is made from, is one of `models.MODELS`."""
    return ":" not in architecture(pool.recipe.model, pool.recipe.model_args)


def _answers(
    module: nn.Module, images: Images, model: int, options: dict, dtype: str, batch: int
) -> np.ndarray:
    """(Q, N, K) logits of one model, doubted first."""
    ask = partial(_forward, _prepare(module.eval(), options["noise"]), dtype)
    _doubt(ask, images, model, len(images.classes), dtype, options["noise"])
    ask = partial(ask, per_step=options.get("per_step"))
    if any(block.solver["method"] in BACKENDS for _, block in neural_de.flow_blocks(module)):
        batch = BLOCK  # its steps or its noise are those of all images of a batch together

    def answer(images: Images) -> np.ndarray:
        one = partial(
            _logits, ask, images, model, options=options, dtype=dtype, steps=timesteps(module)
        )
        # no draw depends on the batch
        answers = [fitting(partial(one, q), batch, BLOCK) for q in range(options["queries"])]
        return answers[0] if options.get("per_step") else np.stack(answers)

    if (output := options.get("output")) is None:
        return answer(images)
    random = (
        answer(_random_images(images, options["seed"])) if defenses.OUTPUTS[output].random else None
    )
    return defenses.change_output(output, answer(images), random, **options["output_args"])


def _random_images(images: Images, seed: int) -> Images:
    """As many images of uniform pixels."""
    draw = torch.Generator().manual_seed(mix(seed, "random images"))
    return images._replace(
        x=torch.randint(0, 256, images.x.shape, generator=draw, dtype=torch.uint8).to(
            images.x.device
        )
    )


def _prepare(module: nn.Module, noise: bool | None) -> nn.Module:
    for layer in module.modules():
        if isinstance(layer, DROPOUT):
            layer.train(noise is True)
    return neural_de.set_noise(module, noise)


def _family(pool: Pool, module: nn.Module) -> dict:
    """What was asked, in words; of spiking networks also over how many steps and how their outputs
    become one answer.
    """
    steps, flow = timesteps(module), neural_de.describe(module)
    about = {"model": pool.recipe.model} | ({} if flow is None else {"flow": flow})
    about |= (
        {"defense": pool.recipe.defense, "defense_args": pool.recipe.defense_args}
        if pool.recipe.defense
        else {}
    )
    about |= {
        name: pool.recipe.model_args[name]
        for name in ("blocks", "freeze")
        if name in pool.recipe.model_args
    }
    base = architecture(pool.recipe.model, pool.recipe.model_args)
    if steps is None:
        about |= {"base": base} if pool.recipe.model in BASES else {}
        return {"family": _equation(pool, flow), **about}
    name = f"snn {base}" if pool.recipe.model == "snn" else base
    return {
        "family": f"{name} T={steps}",
        **about,
        "base": base,
        "timesteps": steps,
        "readout": _readout(module),
    }


def _equation(pool: Pool, flow: dict | None) -> str:
    """Name of a family of networks, of stochastic ones with their noise."""
    base = architecture(pool.recipe.model, pool.recipe.model_args)
    name = (
        f"{base} with its last group replaced" if pool.recipe.model in BASES else pool.recipe.model
    )
    return (
        f"{name} sigma={flow['sigma']:.3g} (noise sd {flow['noise_sd']:.3g})"
        if flow and flow["k"]
        else name
    )


def _forward(module: nn.Module, dtype: str, x: Tensor, per_step: str | None = None) -> Tensor:
    """Logits (B, K), or (T, B, K) with per_step."""
    with (
        torch.inference_mode(),
        torch.autocast(x.device.type, torch.bfloat16, enabled=dtype == "bfloat16"),
    ):
        if not per_step:
            return module(x)
        instant = module(x, per_step=True)
        return (
            cumulative(instant.to(DTYPES[dtype]), _readout(module))
            if per_step == "cumulative"
            else instant
        )


def _readout(module: nn.Module) -> str:
    return getattr(module, "readout", "mean")


def _logits(
    ask,
    images: Images,
    model: int,
    q: int,
    batch: int,
    *,
    options: dict,
    dtype: str,
    steps: int | None,
) -> np.ndarray:
    """(N, K) answers to query q, (T, N, K) where it asks per step; whole blocks at a time, of
    spiking networks a part of them that makes as many rows with its `steps` time steps."""
    answers, samples, part = [], len(images.y), max(1, batch // (steps or 1))
    for start in range(0, samples, batch):
        cut = slice(start, min(start + batch, samples))
        x = images.x[cut]
        blocks = range(cut.start // BLOCK, -(-cut.stop // BLOCK))
        sizes = [min(BLOCK, samples - b * BLOCK) for b in blocks]
        seeds = [(options["seed"], q, b) for b in blocks]
        if options["augment"] and q > 0:
            x = _augmented(x, options["augment"], sizes, seeds)
        x = data.normalise(x, images.mean, images.std, DTYPES[dtype])
        if p := options["input_dropout"]:
            x = x * _masks(
                x, p, sizes, seeds, steps if options.get("mask_scope") == "step" else None
            )
        if options["noise"]:
            answers.append(_noisy(ask, x, sizes, [(options["seed"], model, q, b) for b in blocks]))
        else:
            answers += [ask(few) for few in x.split(part, -4)]
    return torch.cat(answers, -2).double().cpu().numpy()


def _augmented(x: Tensor, ops: str, sizes: list[int], seeds: list[tuple]) -> Tensor:
    drawn = [
        data.augment_draws(ops, n, *x.shape[2:], torch.Generator().manual_seed(mix(*s, "augment")))
        for n, s in zip(sizes, seeds, strict=True)
    ]
    return data.apply_augment(
        x, {k: torch.cat([d[k] for d in drawn]).to(x.device) for k in drawn[0]}
    )


def _masks(
    x: Tensor, p: float, sizes: list[int], seeds: list[tuple], steps: int | None = None
) -> Tensor:
    """1[u > p] per element, with `steps` (steps, B, ...): one for each time step; drawn on the CPU,
    whatever the device.
    """
    drawn = [
        torch.rand(
            steps or 1, n, *x.shape[1:], generator=torch.Generator().manual_seed(mix(*s, "mask"))
        )
        for n, s in zip(sizes, seeds, strict=True)
    ]
    masks = (torch.cat(drawn, 1) > p).to(x.device, x.dtype)
    return masks if steps else masks[0]


def _noisy(ask, x: Tensor, sizes: list[int], seeds: list[tuple]) -> Tensor:
    """Answers with every block under its own seed: SDE blocks draw from generators of this thread,
    the rest, of which one block comes, from torch's global one, which `_ask` gives back as
    found."""
    seeds = [mix(*words, "noise") for words in seeds]
    torch.manual_seed(seeds[0])
    with Draws([torch.Generator(x.device).manual_seed(seed) for seed in seeds], sizes):
        return ask(x)


def _doubt(ask, images: Images, model: int, classes: int, dtype: str, noise: bool | None) -> None:
    """Refuse a model whose answers have the wrong width, are all alike, or depend on chance or on
    the rest of the batch.
    """
    module = ask.args[0]
    spread = torch.linspace(0, len(images.x) - 1, min(64, len(images.x))).long()
    x = data.normalise(images.x[spread.to(images.x.device)], images.mean, images.std, DTYPES[dtype])
    first = ask(x)
    if first.ndim != 2 or first.shape[1] != classes:
        raise ValueError(
            f"model {model} gives outputs of shape {tuple(first.shape)}; wanted ({len(x)},"
            f" {classes}): one logit a class"
        )
    if not torch.isfinite(first).all():
        if reason := neural_de.blown_up(module, x):
            raise ValueError(f"model {model}: {reason}")
        return  # non-finite outputs are named, with their sample, where signals are made
    if noise:
        if torch.equal(*(_noisy(ask, x, [len(x)], [("doubt", n)]) for n in (0, 1))):
            raise ValueError(
                f"model {model} answers every query alike although noise=True: it has no noise to"
                " switch on; use noise=None"
            )
        if next(neural_de.flow_blocks(module), None):
            _prepare(module, False)
            _doubt(ask, images, model, classes, dtype, False)
            _prepare(module, True)
        return
    if getattr(module, "stochastic", False):
        raise ValueError(
            f"model {model} encodes its input as random spikes, so that every answer is another"
            " one: declare it with noise=True, and take several queries"
        )
    # with its noise off a network that learned with it may well have nothing left to say
    if (
        not neural_de.is_noisy(module)
        and len(x) > 1
        and torch.equal(first, first[:1].expand_as(first))
    ):
        raise ValueError(
            f"model {model} gives the same output for every sample: {_silence(module, x)}"
        )
    # convolutions multiply with ten bits
    tf32 = x.is_cuda and dtype == "float32" and torch.backends.cudnn.allow_tf32
    scale = 1e-3 * (1 + first.abs().max()) * (30 if dtype == "bfloat16" else 8 if tf32 else 1)
    # a convolution rounds differently in another batch, and in one sample of many that flips a
    # spike
    allowed = 0 if timesteps(module) is None else 0.25
    if _share(ask(x) - first, scale) > allowed:
        raise ValueError(
            f"model {model} answers the same question differently: declare it with noise=True, or"
            " noise=False to switch it off"
        )
    halves = torch.cat([ask(x[: len(x) // 2]), ask(x[len(x) // 2 :])]) if len(x) > 1 else first
    if _share(halves - first, scale) > allowed:
        raise ValueError(
            f"model {model} answers by its companions in the batch: is BatchNorm left in train"
            " mode?"
        )


def _share(difference: Tensor, scale: Tensor) -> float:
    """Share of samples whose answer differs by more than `scale`."""
    return float((difference.abs().amax(1) > scale).double().mean())


def _silence(module: nn.Module, x: Tensor) -> str:
    """Why a model could give a constant."""
    if isinstance(module, snn.SNN) and module.fold:
        rates = snn.firing_rates(module, [x])
        if len(silent := rates[rates["rate"] == 0]):
            return (
                f"it never spikes at {silent['site'].iloc[0]}; lower its thresholds, or train it"
                " further"
            )
    return "it did not learn, or its input is constant"


@checked
def firing_rates(
    pool: Pool,
    images: Images,
    *,
    models: Sequence[int] | None = None,
    limit: int = 2000,
    batch: int = BLOCK,
    device: str | None = None,
) -> pd.DataFrame:
    """How much the networks of a spiking pool fire: a row per model and site with `model`, `site`,
    `rate`, `silent`, `always`.

    Measured on the first `limit` audited images (not of the population), members and non-members
    alike; columns as `models.snn.firing_rates`. It makes no claim about energy. Raises ValueError
    for models that are no `SNN`.
    """
    instance("pool", pool, Pool), instance("images", images, Images)
    device, limit, batch = device_of(device), whole("limit", limit), whole("batch", batch)
    own = images.digest == pool.folder.read_json("images.json", digest=str)["digest"]
    audited = (
        np.flatnonzero(~pool.population)[:limit] if own else np.arange(min(limit, len(images.y)))
    )
    tables = []
    for m in _rows(pool, models):
        module = pool.model(m)
        if not isinstance(module, snn.SNN):
            raise ValueError(
                f"firing rates are those of spiking networks (models.snn.SNN); {pool.recipe.model}"
                " is none"
            )
        shown = (
            data.normalise(
                images.x[i.to(images.x.device)].to(device),
                images.mean,
                images.std,
                DTYPES[pool.recipe.dtype],
            )
            for i in torch.from_numpy(audited).split(batch)
        )
        with threads(useful_threads(batch * images.x[0].numel())):
            table = snn.firing_rates(module.to(device), shown)
        table.insert(0, "model", m)
        tables.append(table)
    return pd.concat(tables, ignore_index=True)
