"""Convolutional models: published sizes, every input size, one definition for tracing and for
stacking, and `build`.
"""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
from torch import fx, nn
from torch.func import functional_call, stack_module_state, vmap
from torch.nn.functional import cross_entropy, relu

import mia_nb._torchvision
from mia_nb import data
from mia_nb.models import build, check_width, source

SMALL = {
    "tinycnn": {"width": 4},
    "resnet14": {"blocks": 1, "width": 4},
    "resnet18": {"width": 4},
    "vgg16": {"width": 2},
}


def make(model="tinycnn", args=None, *, in_channels=3, num_classes=10, size=32, seed=0, **options):
    return build(
        model,
        args,
        in_channels=in_channels,
        num_classes=num_classes,
        size=size,
        seed=seed,
        **options,
    )


def count(module) -> int:
    return sum(p.numel() for p in module.parameters())


def relu_sites(module) -> int:
    traced = fx.symbolic_trace(module)
    modules = dict(traced.named_modules())
    return sum(
        n.target is relu or isinstance(modules.get(n.target), nn.ReLU) for n in traced.graph.nodes
    )


@pytest.mark.parametrize(("blocks", "parameters"), [(1, 482_986), (2, 871_402), (3, 1_259_818)])
def test_resnet14_has_the_published_parameter_counts(blocks, parameters):
    assert count(make("resnet14", {"blocks": blocks})) == parameters
    assert blocks != 3 or count(make("resnet14")) == parameters


def test_resnet18_and_vgg16_have_the_textbook_parameter_counts():
    # ResNet18 with a 3x3 stem has 11,173,962 at 10 classes without conv biases; one bias per conv
    # channel comes on top.
    biases = 64 * 5 + (128 + 256 + 512) * 4 + (128 + 256 + 512)
    assert count(make("resnet18")) == 11_173_962 + biases
    # VGG16: 14,714,688 in the convolutions, 2 x 4,224 in BatchNorm, and the classifier
    # 512-4096-4096-10.
    assert count(make("vgg16")) == 14_714_688 + 2 * 4_224 + 513 * 4_096 + 4_097 * 4_096 + 4_097 * 10


def test_tinycnn_has_three_convolutions_of_w_2w_and_4w_channels():
    w = 16
    weights = 9 * (1 * w + w * 2 * w + 2 * w * 4 * w)
    assert count(make("tinycnn", in_channels=1, size=8)) == weights + 2 * 7 * w + (4 * w + 1) * 10


@pytest.mark.parametrize(
    ("model", "sites"),
    [("tinycnn", 3), ("resnet14", 1 + 2 * 9 + 2), ("resnet18", 17), ("vgg16", 15)],
)
def test_each_relu_is_one_call_site_of_the_traced_graph(model, sites):
    args = {"width": 2}
    assert relu_sites(make(model, args)) == sites


def test_resnet14_shapes_after_each_group_are_16_8_and_4_pixels_wide():
    net, shapes = make("resnet14"), []
    for group in net.groups:
        group.register_forward_hook(
            lambda module, inputs, output: shapes.append(tuple(output.shape[1:]))
        )
    net(torch.zeros(2, 3, 32, 32))
    assert shapes == [(32, 16, 16), (64, 8, 8), (128, 4, 4)]


@pytest.mark.parametrize("model", SMALL)
@pytest.mark.parametrize(
    ("channels", "height", "width"), [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 24, 40)]
)
def test_every_model_takes_every_image_size_and_sees_the_whole_image(
    model, channels, height, width
):
    net = make(
        model,
        SMALL[model],
        in_channels=channels,
        num_classes=7,
        size=(height, width),
        dtype=torch.float64,
    ).eval()
    x = torch.randn(
        2,
        channels,
        height,
        width,
        generator=torch.Generator().manual_seed(0),
        dtype=torch.float64,
        requires_grad=True,
    )
    logits = net(x)
    assert logits.shape == (2, 7)
    logits[0].square().sum().backward()
    seen = (x.grad[0].abs().sum(0) > 0).double().mean()
    assert seen > 0.95 and (x.grad[1] == 0).all()


@pytest.mark.parametrize("model", SMALL)
def test_stacked_training_steps_equal_training_one_model_at_a_time(model):
    """Parameters, running statistics and step counts after two train-mode steps, three models,
    float64.
    """
    nets = [
        make(model, SMALL[model], num_classes=5, size=16, seed=s, dtype=torch.float64)
        for s in range(3)
    ]
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 6, 3, 16, 16, generator=generator, dtype=torch.float64)
    y = torch.randint(0, 5, (2, 3, 6), generator=generator)
    parameters, buffers = stack_module_state(nets)
    parameters = {name: p.detach().clone().requires_grad_() for name, p in parameters.items()}
    base = copy.deepcopy(nets[0]).to("meta").train()
    stacked = torch.optim.SGD(parameters.values(), lr=0.05, momentum=0.9)
    single = [torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9) for net in nets]
    for x_step, y_step in zip(x, y, strict=True):
        stacked.zero_grad()
        losses = vmap(lambda p, b, x, y: cross_entropy(functional_call(base, (p, b), (x,)), y))
        losses(parameters, buffers, x_step, y_step).sum().backward()
        stacked.step()
        for m, (net, optimizer) in enumerate(zip(nets, single, strict=True)):
            optimizer.zero_grad()
            cross_entropy(net.train()(x_step[m]), y_step[m]).backward()
            optimizer.step()
    for m, net in enumerate(nets):
        for name, value in net.state_dict().items():
            torch.testing.assert_close(
                (parameters | buffers)[name][m].detach(), value, rtol=1e-10, atol=1e-10
            )
    tracked = [value for name, value in buffers.items() if name.endswith("num_batches_tracked")]
    assert tracked and all(value.tolist() == [2, 2, 2] for value in tracked)


def test_weights_depend_on_the_seed_alone_and_the_global_generator_stays_as_found():
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = make("tinycnn", seed=7).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    second, other = make("tinycnn", seed=7).state_dict(), make("tinycnn", seed=8).state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not torch.equal(first["features.0.weight"], other["features.0.weight"])
    double = make("tinycnn", seed=7, dtype=torch.float64)
    assert torch.equal(double.head.weight, first["head.weight"].double())


# --------------------------------------------------------------------------------------------------
# builders of the user


@pytest.fixture
def user(tmp_path, monkeypatch):
    """A module `user_models` that can be imported, holding the given source."""

    def write(source):
        (tmp_path / "user_models.py").write_text("import torch\nfrom torch import nn\n" + source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, "user_models", raising=False)

    return write


def test_a_builder_of_the_user_gets_the_arguments_its_signature_names(user):
    user("""
def mlp(num_classes, size, hidden=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(size[0] * size[1], hidden), nn.Linear(hidden, num_classes))
class Net(nn.Sequential):
    def __init__(self, in_channels):
        super().__init__(nn.Conv2d(in_channels, 4, 3), nn.Flatten())
""")
    net = make("user_models:mlp", {"hidden": 5}, in_channels=1, num_classes=4, size=(6, 7))
    assert net(torch.zeros(2, 1, 6, 7)).shape == (2, 4) and net[1].weight.shape == (5, 42)
    assert make("user_models:Net", in_channels=2)[0].in_channels == 2
    assert torch.equal(
        make("user_models:mlp", seed=3)[1].weight, make("user_models:mlp", seed=3)[1].weight
    )


def test_the_options_of_a_network_that_extends_a_flow_are_those_of_the_init_that_it_runs(user):
    user("""
from mia_nb.models.neural_de import FlowNet
class Own(FlowNet):
    def __init__(self, in_channels, num_classes, **options):
        super().__init__(in_channels, num_classes, **options)
class Same(FlowNet):
    pass
""")
    for model in ("user_models:Own", "user_models:Same"):
        net = make(model, {"width": 4, "steps": 2})
        assert net.stem[0].out_channels == 4 and net.groups[0][0].solver["steps"] == 2
    with pytest.raises(ValueError, match="Same takes no 'stepps'; did you mean 'steps'"):
        make("user_models:Same", {"stepps": 2})
    with pytest.raises(ValueError, match=r"FlowNet.__init__\(\) got an .* argument 'stepps'"):
        make("user_models:Own", {"stepps": 2})


@pytest.mark.parametrize(
    ("model", "args", "says"),
    [
        ("rsnet14", {}, "no model 'rsnet14'; did you mean 'resnet14'?"),
        ("resnet14", {"widht": 16}, "takes no 'widht'; did you mean 'width'?"),
        ("resnet14", {"width": "wide"}, "cannot be built"),
        ("no_such_package:net", {}, "no_such_package cannot be imported"),
        ("user_models:nothing", {}, "has no function 'nothing'"),
        ("user_models:number", {}, "returned a int; wanted a torch.nn.Module"),
        ("user_models:needs", {}, "missing 1 required positional argument: 'depth'"),
        ("user_models:fails", {}, "RuntimeError: no weights here"),
    ],
)
def test_a_model_that_cannot_be_built_is_refused_in_one_line(user, model, args, says):
    user("""
def number(): return 3
def needs(depth): return nn.Identity()
def fails(): raise RuntimeError("no weights here\\nand more")
""")
    with pytest.raises(ValueError) as error:
        make(model, args)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("os:system", "is part of Python or torch"),
        ("subprocess:Popen", "is part of Python or torch"),
        ("torch.hub:load", "is part of Python or torch"),
        ("builtins:exec", "is part of Python or torch"),
        ("torchvision.datasets.utils:download_url", "is part of Python or torch"),
        ("user_models:system", "is no builder of models"),
        ("user_models:run", "is no builder of models"),
        ("user_models:Popen", "is no builder of models"),
        ("user_models:load", "is no builder of models"),
        ("user_models:ready", "is no builder of models"),
        ("no_torch_here:touch", "is no builder of models"),
    ],
)
def test_what_a_foreign_recipe_names_is_called_only_if_it_can_be_a_builder(
    user, tmp_path, model, says
):
    user("""
from functools import partial
from os import system
from subprocess import Popen, run
from torch.hub import load
ready = partial(nn.Linear, 2)
""")
    (tmp_path / "no_torch_here.py").write_text("def touch(path): open(path, 'w')\n")
    mark = tmp_path / "called"
    for args in ({"command": f"touch {mark}"}, {"args": ["touch", str(mark)]}, {"path": str(mark)}):
        for call in (
            lambda args=args: make(model, args),
            lambda args=args: make("snn", {"base": model, "base_args": args}),
        ):
            with pytest.raises(ValueError) as error:
                call()
            assert "\n" not in str(error.value)
        with pytest.raises(ValueError, match=says):
            source(model)
    assert not mark.exists()


def test_a_module_of_python_is_not_even_imported():
    sys.modules.pop("antigravity", None)
    with pytest.raises(ValueError, match="is part of Python or torch"):
        source("antigravity:geohash")
    assert "antigravity" not in sys.modules


def test_builders_of_torchvision_of_a_notebook_and_of_modules_that_use_torch_in_any_way_are_taken(
    user, tmp_path, monkeypatch
):
    mia_nb._torchvision.datasets()
    assert make("torchvision.models:resnet18", {"num_classes": 3}).fc.out_features == 3
    namespace = sys.modules["__main__"].__dict__
    monkeypatch.setitem(namespace, "linear", nn.Linear)
    monkeypatch.setitem(namespace, "written_here", lambda: nn.Identity())
    namespace["written_here"].__module__ = "__main__"
    assert isinstance(make("__main__:written_here"), nn.Identity)
    user("")
    for name, imports in (
        ("one", "from torch.nn import Identity"),
        ("two", "from mia_nb.models.cnn import TinyCNN\nTinyCNN"),
        ("three", "from torchvision.models import resnet18"),
    ):
        (tmp_path / f"builders_{name}.py").write_text(
            f"{imports}\ndef net():\n    import torch\n    return torch.nn.Identity()\n"
        )
        assert isinstance(make(f"builders_{name}:net"), nn.Identity)


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small", "squeezenet1_1"])
def test_a_torchvision_network_as_it_comes_has_one_output_a_class_of_the_images(name):
    images = data.load("synthetic:n=20,classes=7")
    check_width(
        make(f"torchvision.models:{name}", {}, in_channels=3, num_classes=7, size=32), images
    )
    assert make(f"torchvision.models:{name}", {"num_classes": 5}, num_classes=7)(
        torch.zeros(2, 3, 64, 64)
    ).shape == (2, 5)


@pytest.mark.slow
def test_a_fresh_interpreter_builds_torchvision_networks_and_own_modules_that_import_it(tmp_path):
    (tmp_path / "builders_own.py").write_text(
        "import torchvision\nnet = torchvision.models.squeezenet1_1\n"
    )
    for model in ("torchvision.models:squeezenet1_1", "builders_own:net"):
        code = (
            f"from mia_nb import models; models.build({model!r}, in_channels=3, num_classes=3,"
            " size=32, seed=0)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr


def test_images_below_8x8_are_refused_by_the_named_models():
    with pytest.raises(
        ValueError, match=r"resnet18 wants images of 8x8 pixels or more; these are 7x32"
    ):
        make("resnet18", size=(7, 32))


def test_check_width_accepts_the_right_width_and_leaves_mode_statistics_and_generator_alone():
    images = data.load("digits", limit=20)
    net = make("tinycnn", in_channels=1, size=8).train()
    net.head.eval()
    state, generator = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    assert check_width(net, images) is net
    assert net.training and net.features[1].training and not net.head.training
    assert all(torch.equal(value, state[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


@pytest.mark.parametrize(
    ("net", "says"),
    [
        (
            nn.Sequential(nn.Flatten(), nn.Linear(64, 9)),
            "gives (2, 9) for two images; wanted (2, 10)",
        ),
        (nn.Identity(), "gives (2, 1, 8, 8) for two images"),
        (nn.Conv2d(3, 10, 3), "fails on two images of shape (1, 8, 8)"),
        (nn.GRU(8, 10), "fails on two images"),
        (nn.LSTM(10, 10), "fails on two images"),
    ],
)
def test_check_width_names_what_came_and_what_was_wanted(net, says):
    with pytest.raises(ValueError) as error:
        check_width(net, data.load("digits", limit=20))
    assert says in str(error.value) and "\n" not in str(error.value)


def test_check_width_refuses_a_model_that_returns_a_tuple():
    class Two(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(ValueError, match="gives tuple for two images"):
        check_width(Two(), data.load("digits", limit=20))
