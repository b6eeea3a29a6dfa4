"""The models of this package by name: the builder of each, and the network it is made from."""

from __future__ import annotations

MODELS = {
    "tinycnn": "mia_nb.models.cnn:TinyCNN",
    "resnet14": "mia_nb.models.cnn:ResNet14",
    "resnet18": "mia_nb.models.cnn:ResNet18",
    "vgg16": "mia_nb.models.cnn:VGG16",
    "fast": "mia_nb.models.fast:FastNet",
    "odenet": "mia_nb.models.neural_de:FlowNet",
    "odenet64": "mia_nb.models.neural_de:FlowNet",
    "anode": "mia_nb.models.neural_de:FlowNet",
    "sonode": "mia_nb.models.neural_de:FlowNet",
    "hbnode": "mia_nb.models.neural_de:FlowNet",
    "sdenet": "mia_nb.models.neural_de:FlowNet",
    "snn": "mia_nb.models.snn:network",
    "replaced": "mia_nb.models.replaced:replaced",
    "bottleneck": "mia_nb.models.bottleneck:Bottleneck",
}
FORMS = {  # options that a name stands for, where one class has several; model_args override them
    "odenet64": {"layout": "64"},
    "anode": {"layout": "64", "augment": 16},
    "sonode": {"layout": "64", "order": 2},
    "hbnode": {"layout": "64", "order": 2, "damped": True},
    "sdenet": {"k": 0.5},
}
FLOWS = ("odenet", "replaced", "bottleneck", *FORMS)  # networks of differential equations
# {model made from another one, model_args["base"]: its default base}
BASES = {"snn": "tinycnn", "replaced": "resnet14", "bottleneck": "tinycnn"}
PLACES = {place.partition(":")[0] for place in MODELS.values()}


def architecture(model: str, model_args: dict | None = None) -> str:
    """The name of the model; for a spiking or replaced network, the name of its base.

    Parameters:
        model: as for `build`.
        model_args: its options, among them "base".
    """
    return (model_args or {}).get("base", BASES[model]) if model in BASES else model


def builders_of(model: str, model_args: dict | None = None) -> list[str]:
    """The builder "module:function" outside of this package that makes a network, in a list; [] if
    there is none.

    Parameters:
        model, model_args: as for `build`; for a network with a base, the innermost base counts.
    """
    while model in BASES:
        args = model_args if isinstance(model_args, dict) else {}
        model = str(args.get("base", BASES[model]))
        model_args = args.get("base_args")
    return [] if model in MODELS or ":" not in model else [model]
