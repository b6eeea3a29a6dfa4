"""Strategies beyond plain and stacked: compiled steps, groups in a CUDA graph, and measurements
that are remembered.
"""

import gc
import json
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from mia_nb import data, store, training
from mia_nb.training import clipped, compiled, execution, graphs, loop, work
from mia_nb.types import Recipe

HERE = __name__
MLP = Recipe(model="toys:mlp", num_models=4, epochs=2, batch=16, lr=0.05, dtype="float64")
TINY = MLP.replace(model="tinycnn", model_args={"width": 4})


@pytest.fixture(scope="module")
def images():
    return data.load("synthetic:classes=4,n=160,size=8,channels=1,seed=1")


@pytest.fixture
def quick(monkeypatch):
    """Compilation without the C++ part of it: the same tracing and the same gradients, in a tenth
    of the time.
    """
    monkeypatch.setattr(compiled, "OPTIONS", {"backend": "aot_eager"})
    monkeypatch.setattr(compiled, "_FUNCTIONS", {})


def plan_of(recipe, images, strategy="plain"):
    plan = loop.Plan(
        recipe,
        images,
        np.ones((recipe.num_models, len(images.y)), bool),
        torch.device("cpu"),
        False,
        False,
    )
    return execution.parsed(strategy).of(plan)


def train(recipe, images, root, **options):
    return training.train_pool(
        recipe, images, root=root, progress=False, **{"workers": 1, **options}
    )


def same_weights(one, other, **tolerance):
    for m in range(len(one.member)):
        for name, tensor in one.state(m).items():
            torch.testing.assert_close(other.state(m)[name], tensor, **tolerance)


class Sniffing(nn.Module):
    """Is another network while it is compiled."""

    def __init__(self, in_channels, num_classes, size):
        super().__init__()
        self.last = nn.Linear(in_channels * size[0] * size[1], num_classes)

    def forward(self, x):
        return self.last(x.flatten(1)) * (2 if torch.compiler.is_compiling() else 1)


class _Spike(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(v):
        return (v >= 0).to(v.dtype)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, grad):
        (v,) = ctx.saved_tensors
        return grad / (1 + v.square())


class Spiking(Sniffing):
    """A spike with a surrogate gradient in a custom autograd function, and a weight before it."""

    def __init__(self, in_channels, num_classes, size):
        super().__init__(in_channels, num_classes, size)
        self.first = nn.Linear(in_channels * size[0] * size[1], in_channels * size[0] * size[1])

    def forward(self, x):
        return self.last(_Spike.apply(self.first(x.flatten(1))))


@pytest.mark.parametrize(
    "word",
    [
        "",
        "fast",
        "plain:4",
        "stacked:0",
        "graph",
        "graph:0",
        "graph:4+compiled",
        "auto+compiled",
        None,
    ],
)
def test_a_strategy_that_there_is_not_is_refused_in_one_line(word):
    with pytest.raises(
        ValueError, match=r"strategy=.*wanted auto, measure, plain, stacked"
    ) as caught:
        execution.parsed(word)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "word", ["plain", "plain+compiled", "stacked:3", "stacked:3+compiled", "graph:4"]
)
def test_a_strategy_is_read_as_it_is_written(word, images):
    way = execution.parsed(word)
    assert str(way) == word
    plan = plan_of(MLP, images, word)
    how = {
        "stacked": plan.stacked,
        "group": way.group,
        "compiled": plan.compiled,
        "graph": plan.graph,
    }
    assert execution.recorded_strategy(how) == way
    assert str(execution.parsed("stacked")) == "stacked:16"


def test_by_rule_nothing_is_compiled_or_captured_and_old_records_say_neither(images):
    for recipe in (MLP, TINY):
        how = execution.choose(plan_of(recipe, images), "cpu", "auto", 1)
        assert not how["compiled"] and not how["graph"]
    assert str(execution.recorded_strategy({"stacked": True, "group": 8})) == "stacked:8"


@pytest.mark.parametrize(
    ("room", "schedule", "expected"),
    [
        (100, "one_cycle", 10),  # two graphs, and not one of 16 beside one of 4
        (5.5, "one_cycle", 5),
        (9, "one_cycle", 7),
        (0.3, "one_cycle", 1),
        (100, "plateau", 1),  # a learning rate per model
    ],
)
def test_a_graph_takes_as_many_models_as_their_activations_allow(
    images, monkeypatch, room, schedule, expected
):
    plan = plan_of(TINY.replace(num_models=20, schedule=schedule, batch=64), images)
    few = plan.recipe.replace(batch=32)
    each = 2 * loop.saved_bytes(plan._replace(recipe=few))  # of 64 images
    memory = SimpleNamespace(total_memory=16 * room * each)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: memory)
    assert execution.side_by_side(plan) == expected


@pytest.mark.slow
def test_a_second_model_and_a_second_group_compile_nothing(images, quick):
    counters.clear()
    for strategy, units in (
        ("plain+compiled", ([0], [1], [2])),
        ("stacked:2+compiled", ([0, 1], [2, 3])),
    ):
        plan, frames = plan_of(MLP, images, strategy), []
        for ids in units:
            clipped.group_of(plan, ids).epoch(0, [])
            frames.append(counters["stats"]["unique_graphs"])
        assert len(set(frames)) == 1 and frames[0] > 0, frames


@pytest.mark.slow
def test_many_plans_in_one_process_stay_below_the_limit_of_recompilations(images, quick):
    for size in range(4, 14):  # the limit is 8
        plan = plan_of(MLP.replace(model_args={"width": size}), images, "plain+compiled")
        counters.clear()
        clipped.group_of(plan, [0]).epoch(0, [])
        assert counters["stats"]["unique_graphs"] == 1
    assert len(compiled._FUNCTIONS) <= compiled.KEPT


@pytest.mark.slow
def test_a_builder_that_was_redefined_is_compiled_anew(images, quick, monkeypatch):
    import toys

    plan = plan_of(MLP, images, "plain+compiled")
    for activation in (nn.ReLU, nn.Tanh):
        # its file, which is read for the key, stays the same
        monkeypatch.setattr(toys.nn, "ReLU", activation)
        assert compiled.why_not_compiled(plan) is None
        groups = [clipped.group_of(p, [1]) for p in (plan, plan._replace(compiled=False))]
        losses = [group.epoch(0, [])[1] for group in groups]
        torch.testing.assert_close(*losses, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_pools_that_share_a_step_share_its_compiled_function_and_their_data_are_let_go(
    images, quick
):
    there = images._replace(x=images.x.clone())
    held = weakref.ref(there.x)
    counters.clear()
    for change in (
        {},
        {"seed": 1},
        {"epochs": 5},
        {"lr": 0.5},
        {"num_models": 6},
        {"optimizer": "adam"},
        {"augment": "flip"},
    ):
        clipped.group_of(plan_of(MLP.replace(**change), there, "plain+compiled"), [0]).epoch(0, [])
    assert len(compiled._FUNCTIONS) == 1 and counters["stats"]["unique_graphs"] == 1
    del there
    gc.collect()
    assert held() is None
    # another step each
    for change in ({"batch": 8}, {"dtype": "float32"}, {"model_args": {"width": 5}}):
        clipped.group_of(plan_of(MLP.replace(**change), images, "plain+compiled"), [0]).epoch(0, [])
    assert len(compiled._FUNCTIONS) == 4


def test_a_compiled_pool_that_cannot_be_compiled_where_it_is_resumed_says_so_in_one_line(
    images, tmp_path, quick, monkeypatch
):
    pool = train(MLP.replace(num_models=2), images, tmp_path, strategy="plain+compiled")
    pool.folder.remove("model_001.safetensors")
    monkeypatch.setattr(compiled, "OPTIONS", {"backend": broken})
    monkeypatch.setattr(compiled, "_FUNCTIONS", {})
    with pytest.raises(
        ValueError, match=r"begun compiled and cannot be compiled here \(.*no compiler.*force=True"
    ) as caught:
        train(MLP.replace(num_models=2), images, tmp_path, strategy="plain+compiled")
    assert "\n" not in str(caught.value)


def broken(module, inputs):
    raise OSError("no compiler on this machine\nand a long story")


CROPPED = {"model": "tinycnn", "model_args": {"width": 4}, "augment": "crop+flip"}
PER_STEP = {
    "model": "snn",
    "model_args": {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 2},
    "loss": "tet",
}


@pytest.mark.parametrize(
    ("change", "strategy"),
    [
        (CROPPED, "plain"),
        ({"defense": "label_smoothing", "optimizer": "adam"}, "stacked:2"),
        pytest.param(CROPPED, "stacked:2", marks=pytest.mark.slow),
        pytest.param(PER_STEP, "plain", marks=pytest.mark.slow),
        pytest.param(PER_STEP, "stacked:2", marks=pytest.mark.slow),
    ],
)
def test_a_compiled_pool_is_the_eager_one_in_float64(images, tmp_path, quick, change, strategy):
    recipe = MLP.replace(num_models=2, **change)
    eager = train(recipe, images, tmp_path / "eager", strategy=strategy)
    fast = train(recipe, images, tmp_path / "compiled", strategy=strategy + "+compiled")
    assert fast.folder.read_json("execution.json")["compiled"]
    same_weights(eager, fast, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(fast.traces, eager.traces, rtol=1e-3)  # stored as float16


@pytest.mark.slow  # half a minute of C++ compilation each
@pytest.mark.parametrize(("model", "strategy"), [("tinycnn", "plain"), ("snn", "stacked:2")])
def test_a_pool_compiled_to_machine_code_is_the_eager_one_in_float64(
    images, tmp_path, model, strategy
):
    args = {"base": "tinycnn", "timesteps": 2} if model == "snn" else {"width": 4}
    recipe = MLP.replace(model=model, model_args=args, num_models=2)
    eager = train(recipe, images, tmp_path / "eager", strategy=strategy)
    fast = train(recipe, images, tmp_path / "compiled", strategy=strategy + "+compiled")
    assert fast.folder.read_json("execution.json")["compiled"]
    same_weights(eager, fast, rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_a_compiled_pool_learns_in_bfloat16_as_an_eager_one(images, tmp_path):
    recipe = TINY.replace(dtype="bfloat16", epochs=12, num_models=2)
    eager = train(recipe, images, tmp_path / "eager", strategy="plain")
    fast = train(recipe, images, tmp_path / "compiled", strategy="plain+compiled")
    # logarithms of losses
    last = [pool.traces[:, -1][pool.member].astype(float) for pool in (eager, fast)]
    assert np.median(last[1]) < np.log(0.7) and abs(np.median(last[0]) - np.median(last[1])) < 0.5


@pytest.mark.parametrize(
    "change",
    [
        {"model": "toys:dropout_mlp"},
        pytest.param(
            {"model": "sdenet", "model_args": {"width": 4, "steps": 2}}, marks=pytest.mark.slow
        ),
    ],
)
def test_noise_of_a_compiled_model_is_the_eager_one_and_a_compiled_stack_of_noise_is_refused(
    images, quick, change
):
    recipe = MLP.replace(**change)
    plan = plan_of(recipe, images, "plain+compiled")
    assert compiled.why_not_compiled(plan) is None
    groups = [clipped.group_of(p, [1]) for p in (plan, plan._replace(compiled=False))]
    for group in groups:
        group.epoch(0, [])
    for name, tensor in groups[1].weights(0).items():
        torch.testing.assert_close(groups[0].weights(0)[name], tensor, rtol=1e-10, atol=1e-10)
    assert "random numbers" in compiled.why_not_compiled(
        plan_of(recipe, images, "stacked:2+compiled")
    )


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"model": f"{HERE}:Sniffing"}, "losses of its compiled step 1 are others"),
        ({"model": "toys:branching"}, "branching"),
        ({"defense": "relaxloss", "defense_args": {"target": 0.5}}, "relaxloss"),
    ],
)
def test_what_compiling_would_change_is_trained_eagerly_and_one_line_says_why(
    images, tmp_path, quick, capsys, change, word
):
    recipe = MLP.replace(**change)
    pool = train(recipe, images, tmp_path / "asked", strategy="plain+compiled")
    said = capsys.readouterr().err.strip()
    assert said.startswith("training without compilation: ") and word in said and "\n" not in said
    how = pool.folder.read_json("execution.json")
    assert (how["compiled"], how["asked"]) == (False, "plain+compiled")
    same_weights(train(recipe, images, tmp_path / "plain", strategy="plain"), pool, rtol=0, atol=0)
    pool.folder.remove("model_001.safetensors")
    assert (
        train(recipe, images, tmp_path / "asked", strategy="plain+compiled").status
        == ["trained"] * 4
    )


def test_a_gradient_that_compiling_would_lose_is_not_lost(images, quick):
    recipe = MLP.replace(model=f"{HERE}:Spiking")
    for strategy in ("plain+compiled", "stacked:2+compiled"):
        plan = plan_of(recipe, images, strategy)
        if compiled.why_not_compiled(plan) is None:  # then it must train what eager code trains
            groups = [
                clipped.group_of(p, [0, 1][: 1 + plan.stacked])
                for p in (plan, plan._replace(compiled=False))
            ]
            for group in groups:
                group.epoch(0, [])
            torch.testing.assert_close(
                groups[0].params["first.weight"],
                groups[1].params["first.weight"],
                rtol=1e-10,
                atol=1e-10,
            )


def test_without_a_compiler_training_goes_on_and_says_so(images, tmp_path, monkeypatch, capsys):
    import torch._inductor.config

    monkeypatch.setattr(torch._inductor.config.cpp, "cxx", ("/nowhere/g++",))
    monkeypatch.setattr(compiled, "_FUNCTIONS", {})
    pool = train(MLP.replace(num_models=2, seed=5), images, tmp_path, strategy="plain+compiled")
    assert (
        pool.status == ["trained"] * 2 and not pool.folder.read_json("execution.json")["compiled"]
    )
    assert "training without compilation: No working C++ compiler" in capsys.readouterr().err


def test_compiled_and_plain_arithmetic_are_not_mixed_in_a_pool(images, tmp_path, quick):
    pool = train(MLP, images, tmp_path, strategy="plain")
    pool.folder.remove("model_001.safetensors")
    with pytest.raises(ValueError, match=r"begun with strategy plain, not plain\+compiled"):
        train(MLP, images, tmp_path, strategy="plain+compiled")
    how = pool.folder.read_json("execution.json")
    pool.folder.write_json(
        "execution.json", {k: v for k, v in how.items() if k not in ("compiled", "graph", "asked")}
    )
    assert train(MLP, images, tmp_path, strategy="plain").status == ["trained"] * 4


@pytest.mark.parametrize(
    "strategy", ["plain+compiled", pytest.param("stacked:4+compiled", marks=pytest.mark.slow)]
)
def test_a_resumed_compiled_group_ends_with_the_bytes_of_one_never_stopped(images, quick, strategy):
    plan = plan_of(MLP.replace(dtype="float32", epochs=3, augment="flip"), images, strategy)
    ids = list(range(4)) if plan.stacked else [2]
    whole, first = clipped.group_of(plan, ids), clipped.group_of(plan, ids)
    for epoch in range(3):
        whole.epoch(epoch, [])
    first.epoch(0, [])
    resumed = clipped.group_of(plan, ids)
    resumed.load(first.state())
    for epoch in (1, 2):
        resumed.epoch(epoch, [])
    assert all(
        torch.equal(whole.weights(len(ids) - 1)[k], v)
        for k, v in resumed.weights(len(ids) - 1).items()
    )


# ----------------------------------------------------------------------------------------------
# resumed, and short of memory


LEARNED = {
    "model": "snn",
    "model_args": {"base": "tinycnn", "base_args": {"width": 4}, "timesteps": 2, "learn": True},
}


@pytest.mark.parametrize(
    "change", [{"optimizer": "adam"}, {"optimizer": "adam", **LEARNED}, LEARNED]
)
@pytest.mark.parametrize("strategy", ["plain", "stacked:2"])
def test_every_entry_of_an_optimiser_keeps_its_type_when_a_group_is_resumed(
    images, change, strategy
):
    plan = plan_of(TINY.replace(epochs=1, **change), images, strategy)
    whole, resumed = (loop.Group(plan, [0, 1][: 1 + plan.stacked]) for _ in range(2))
    whole.epoch(0, [])
    resumed.load(whole.state())
    entries = [
        [(group.optimizer.state[p], p) for p in group.params.values()] for group in (whole, resumed)
    ]
    kinds = [
        [{k: (v.dtype, v.shape) for k, v in entry.items() if v is not None} for entry, _ in each]
        for each in entries
    ]
    assert kinds[0] == kinds[1] and all(kinds[0])
    if change is not LEARNED:
        assert {entry["step"][0] for entry in kinds[1]} == {torch.float32}
    if "model" in change and not plan.stacked:
        assert any(p.ndim == 0 for p in whole.params.values())  # a learned threshold


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (torch.OutOfMemoryError("anything"), True),
        (
            RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8"
                " bytes"
            ),
            True,
        ),
        (RuntimeError("CUDA error: out of memory"), True),
        (
            RuntimeError(
                "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"
            ),
            True,
        ),
        (RuntimeError("shapes do not fit"), False),
        (ValueError("out of memory"), False),
    ],
)
def test_a_lack_of_memory_is_known_by_its_words(error, short):
    assert loop.short_of_memory(error) is short


def test_a_cpu_that_has_no_memory_left_says_it_in_these_words():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(2**60, dtype=torch.uint8)
    assert loop.short_of_memory(caught.value)


# --------------------------------------------------------------------------------------------------
# groups in a CUDA graph


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_the_step_of_a_graph_group_is_the_plain_one(images, optimizer):
    recipe = TINY.replace(optimizer=optimizer, lr=loop.EXACT, schedule="constant", augment="flip")
    plan = plan_of(recipe, images)
    together = graphs.GraphGroup(plan, [0, 2])
    for slot, row in enumerate(together.ids):
        alone = loop.Group(plan, [row])
        for epoch in range(2):
            order, losses = alone.epoch(epoch, [])
            if slot == 0:
                both = together.epoch(epoch, [])
                torch.testing.assert_close(both[1][:1], losses, rtol=1e-12, atol=1e-12)
                assert torch.equal(both[0][:1], order)
        for name, tensor in alone.weights(0).items():
            torch.testing.assert_close(together.weights(slot)[name], tensor, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_warm_up_steps_before_a_capture_leave_no_trace(images, optimizer):
    plan = plan_of(TINY.replace(optimizer=optimizer, dtype="float32"), images)
    warmed, cold = (graphs.GraphGroup(plan, [0, 1]) for _ in range(2))
    for epoch in range(2):  # before the first step, and in the middle of training
        before = warmed.tensors()
        kept = [t.clone() for t in before]
        warmed.x.normal_(generator=torch.Generator().manual_seed(0))
        warmed.y.zero_()
        warmed.warm_up()
        assert all(torch.equal(t, k) for t, k in zip(before, kept, strict=True))
        assert torch.equal(warmed.epoch(epoch, [])[1], cold.epoch(epoch, [])[1])
    assert all(torch.equal(a, b) for a, b in zip(warmed.tensors(), cold.tensors(), strict=True))


class Breaking(nn.Module):
    """Puts another tensor in its buffer's place, and fails where it is told to."""

    def __init__(self, in_channels, num_classes, size):
        super().__init__()
        self.last, self.fuse = nn.Linear(in_channels * size[0] * size[1], num_classes), None
        self.register_buffer("mean", torch.zeros(()))

    def forward(self, x):
        self.mean = 0.9 * self.mean + x.detach().mean() + 1
        if self.fuse is not None and self.mean > self.fuse:
            raise RuntimeError("the first thing that went wrong")
        return self.last(x.flatten(1)) + 0 * self.mean


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_steps_before_a_capture_that_fail_midway_leave_no_trace_and_say_what_went_wrong(
    images, optimizer
):
    group = graphs.GraphGroup(
        plan_of(MLP.replace(model=f"{HERE}:Breaking", optimizer=optimizer), images), [0, 1]
    )
    group.epoch(0, [])
    before = [(tensor, tensor.clone()) for tensor in group.tensors()]
    places = [one.module.mean for one in group.each]
    # after a step of the first model
    group.each[1].module.fuse = float(group.each[1].module.mean) + 1e-3
    with pytest.raises(RuntimeError, match="the first thing that went wrong"):
        group.warm_up()
    assert all(torch.equal(tensor, value) for tensor, value in before)
    assert all(one.module.mean is place for one, place in zip(group.each, places, strict=True))
    group.each[1].module.fuse = None
    group.warm_up()
    assert all(one.module.mean is place for one, place in zip(group.each, places, strict=True))


def test_a_resumed_graph_group_ends_with_the_bytes_of_one_never_stopped(images):
    plan = plan_of(TINY.replace(dtype="float32"), images)
    whole, first, resumed = (graphs.GraphGroup(plan, [0, 3]) for _ in range(3))
    whole.epoch(0, [])
    first.epoch(0, [])
    resumed.load(first.state())
    whole.epoch(1, [])
    resumed.warm_up()  # what a capture begins with
    resumed.epoch(1, [])
    assert all(torch.equal(a, b) for a, b in zip(whole.tensors(), resumed.tensors(), strict=True))
    with pytest.raises(KeyError):
        resumed.load({name: t for name, t in first.state().items() if not name.startswith("1.")})


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_unit_of_a_graph_goes_on_from_its_part_file(images, tmp_path, optimizer, capsys):
    recipe = MLP.replace(num_models=2, epochs=4, optimizer=optimizer)
    folders, epochs = [], []
    for name in ("whole", "stopped"):
        pool = train(recipe, images, tmp_path / name, strategy="plain")
        pool.folder.remove(*(n for n in pool.folder.files() if n.startswith(("model", "losses"))))
        folders.append(pool.folder)
    plan = work.bare_plan(folders[0])._replace(graph=True)  # on a CPU its steps are run as they are

    def stop(rows, epoch, loss):
        if epoch == 3:
            raise KeyboardInterrupt

    work.train_unit(folders[0], plan, [0, 1], 0, lambda *_: None)
    with pytest.raises(KeyboardInterrupt):
        work.train_unit(folders[1], plan, [0, 1], 0, stop)
    work.train_unit(folders[1], plan, [0, 1], 0, lambda rows, epoch, loss: epochs.append(epoch))
    assert epochs == [2, 3, 4] and "truncated" not in capsys.readouterr().err
    same = [{n: f.files()[n] for n in f.files() if n.startswith("model")} for f in folders]
    assert same[0] == same[1] and len(same[0]) == 2


def test_a_step_that_a_graph_would_change_is_found(images):
    for recipe in (TINY, MLP.replace(model="toys:dropout_mlp")):  # noise in the models' order
        assert graphs.difference(plan_of(recipe, images), 2) is None

    class Careless(graphs.GraphGroup):
        def run(self):  # a graph that never sees the second batch
            self.x.copy_(self.x.clone() if not hasattr(self, "seen") else self.seen)
            self.seen = self.x.clone()
            super().run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "GraphGroup", Careless)
        assert "losses of its captured step 2" in graphs.difference(plan_of(TINY, images), 2)

    class Frozen(graphs.GraphGroup):
        def run(self):  # a graph that repeats the noise of its capture
            torch.manual_seed(7)
            super().run()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graphs, "GraphGroup", Frozen)
        noisy = plan_of(MLP.replace(model="toys:dropout_mlp"), images)
        assert "losses of its captured step 1" in graphs.difference(noisy, 2)


def test_models_in_a_graph_draw_noise_one_after_another_and_warming_up_draws_none(images):
    plan = plan_of(MLP.replace(model="toys:dropout_mlp"), images)
    warmed, cold, first = (graphs.GraphGroup(plan, rows) for rows in ([0, 1], [0, 1], [0]))
    losses = cold.epoch(0, [])[1]
    with loop.random_state_kept(plan.device):
        warmed.x.normal_(generator=torch.Generator().manual_seed(0))
    before = torch.get_rng_state()
    warmed.warm_up()
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(warmed.epoch(0, [])[1], losses)
    # the first step of the first model is that of a plain one; one model alone is one throughout
    alone = loop.Group(plan, [0]).epoch(0, [])[1]
    assert torch.equal(losses[0, : plan.recipe.batch], alone[0, : plan.recipe.batch])
    torch.testing.assert_close(first.epoch(0, [])[1], alone, rtol=1e-6, atol=1e-6)


def test_a_graph_on_a_cpu_is_refused_in_one_line_and_recorded_as_plain(images, tmp_path, capsys):
    pool = train(MLP, images, tmp_path, strategy="graph:2")
    said = capsys.readouterr().err.strip()
    assert "CUDA graphs need a GPU, and this is cpu" in said and "\n" not in said
    how = pool.folder.read_json("execution.json")
    assert (how["graph"], how["stacked"], how["group"]) == (False, False, 1)
    reasons = {"schedule": "plateau", "defense": "relaxloss", "optimizer_args": {"dampening": 0.5}}
    for name, value in reasons.items():  # asked of a GPU, before one is touched
        plan = plan_of(MLP.replace(**{name: value}), images)._replace(device=torch.device("cuda"))
        assert any(w in graphs.why_no_graph(plan, 2) for w in ("plateau", "relaxloss", "dampening"))


# ------------------------------------------------------------------------------------------ what
# was measured before


def test_a_measurement_is_remembered_and_a_damaged_one_is_not_trusted(
    images, tmp_path, monkeypatch, capsys
):
    plan, calls, measure = plan_of(MLP, images), [], execution._seconds
    monkeypatch.setattr(execution, "_seconds", lambda *args: calls.append(args) or measure(*args))
    chosen = execution.choose(plan, "cpu", "measure", 1, root=tmp_path)
    # plain and stacked:4
    assert len(calls) == 2 and "measured before" not in capsys.readouterr().err
    assert execution.choose(plan, "cpu", "measure", 1, root=tmp_path) == chosen
    assert len(calls) == 2 and "measured before" in capsys.readouterr().err
    execution.choose(
        plan_of(MLP.replace(seed=1, epochs=7), images), "cpu", "measure", 1, root=tmp_path
    )
    assert len(calls) == 2  # of the same kind
    execution.choose(plan_of(MLP.replace(batch=8), images), "cpu", "measure", 1, root=tmp_path)
    assert len(calls) == 4 and len(json.loads((tmp_path / "measured.json").read_text())) == 2
    kept = (tmp_path / "measured.json").read_text()
    (tmp_path / "measured.json").write_text(kept.replace("0.0", "9.0", 1))
    capsys.readouterr()
    execution.choose(plan, "cpu", "measure", 1, root=tmp_path)
    assert len(calls) == 6 and "altered" in capsys.readouterr().err
    assert store.Folder(tmp_path).intact("measured.json")


@pytest.mark.slow
def test_only_a_long_training_tries_compilation_and_takes_what_was_fastest(
    images, tmp_path, quick, monkeypatch, capsys
):
    seconds = {"plain": 0.1, "stacked:4": 0.2, "plain+compiled": 0.05, "stacked:4+compiled": 0.3}

    def pretend(plan, models):
        kind = f"stacked:{models}" if plan.stacked else "plain"
        return seconds[kind + "+compiled" * plan.compiled]

    monkeypatch.setattr(execution, "_seconds", pretend)
    short, long = (plan_of(MLP.replace(epochs=epochs), images) for epochs in (2, 400))
    assert not execution.choose(short, "cpu", "measure", 1, root=tmp_path)["compiled"]
    how = execution.choose(long, "cpu", "measure", 1, root=tmp_path)
    assert how["compiled"] and not how["stacked"]
    assert "taking plain+compiled" in capsys.readouterr().err
    assert execution.choose(long, "cpu", "measure", 1) == how  # nowhere to remember it


def test_a_way_that_fails_is_not_taken_and_measured_again_by_the_next_pool(
    images, tmp_path, monkeypatch, capsys
):
    plan, measure, tried = plan_of(MLP.replace(num_models=8), images), execution._seconds, []

    def short(plan, models):
        tried.append(models)
        if models == 4:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB\nand more")
        return measure(plan, models)

    monkeypatch.setattr(execution, "_seconds", short)
    how = execution.choose(plan, "cpu", "measure", 1, root=tmp_path)
    said = capsys.readouterr().err.splitlines()
    assert how["group"] in (1, 8) and tried == [1, 4, 8] and len(said) == 2
    assert said[0].startswith("stacked:4 is not taken, as it fails here: CUDA out of memory")
    assert list(*json.loads((tmp_path / "measured.json").read_text()).values()) == [
        "plain",
        "stacked:8",
    ]
    assert execution.choose(plan, "cpu", "measure", 1, root=tmp_path)["stacked"] == how["stacked"]
    # what is known is not tried again
    assert tried == [1, 4, 8, 4] and "measured before" in capsys.readouterr().err
    monkeypatch.setattr(
        execution, "_seconds", lambda *_: (_ for _ in ()).throw(RuntimeError("nothing works"))
    )
    plain = execution.choose(plan, "cpu", "measure", 1)
    assert (plain["stacked"], plain["compiled"]) == (False, False)


def test_ways_that_are_only_tried_are_refused_in_silence(images, quick, monkeypatch, capsys):
    plan = plan_of(MLP.replace(model=f"{HERE}:Sniffing", epochs=400, num_models=2), images)
    monkeypatch.setattr(execution, "_seconds", lambda plan, models: 0.1 * models)
    assert not execution.choose(plan, "cpu", "measure", 1)["compiled"]
    assert "training without" not in capsys.readouterr().err
    assert not execution.choose(plan, "cpu", "plain+compiled", 1)["compiled"]
    assert "training without compilation" in capsys.readouterr().err


def test_what_was_measured_holds_for_one_schedule_and_one_code(images, monkeypatch):
    plan, keys = plan_of(MLP, images), []
    for schedule in ("one_cycle", "plateau"):
        keys.append(execution._kind_of(plan._replace(recipe=MLP.replace(schedule=schedule))))
    monkeypatch.setattr(execution.models, "source", lambda *_: "other code")
    assert len({*keys, execution._kind_of(plan)}) == 3


def test_a_device_with_a_number_gets_one_process(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert execution.processes(MLP, "cuda:1", 4) == 1 and execution.processes(MLP, "cpu", 3) == 3
