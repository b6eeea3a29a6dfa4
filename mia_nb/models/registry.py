"""The models of this package by name: where each lives, and what it is made of."""

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
FORMS = {  # what a name stands for where one class serves several; model_args come after it
    "odenet64": {"layout": "64"},
    "anode": {"layout": "64", "augment": 16},
    "sonode": {"layout": "64", "order": 2},
    "hbnode": {"layout": "64", "order": 2, "damped": True},
    "sdenet": {"k": 0.5},
}
FLOWS = ("odenet", "replaced", "bottleneck", *FORMS)  # networks of differential equations
# models made of another one, model_args["base"], and which by default
BASES = {"snn": "tinycnn", "replaced": "resnet14", "bottleneck": "tinycnn"}
PLACES = {place.partition(":")[0] for place in MODELS.values()}
DEEPEST = 20  # networks that are made of one another


def architecture(model: str, model_args: dict | None = None) -> str:
    """The model's name, of a spiking or replaced network that of the network it is made from.

    Parameters:
        model: as for `build`.
        model_args: its options, among them "base".
    """
    return (model_args or {}).get("base", BASES[model]) if model in BASES else model


def builders_of(model: str, model_args: dict | None = None) -> list[str]:
    """Builders "module:function" outside of this package that a network is made by.

    Parameters:
        model, model_args: as for `build`; of a network that is made of another one the innermost
            counts.
    """
    depth = 0
    while model in BASES:
        if (depth := depth + 1) > DEEPEST:
            raise ValueError(f"model_args name a base within a base more than {DEEPEST} times")
        args = model_args if isinstance(model_args, dict) else {}
        model = str(args.get("base", BASES[model]))
        model_args = args.get("base_args")
    return [] if model in MODELS or ":" not in model else [model]
