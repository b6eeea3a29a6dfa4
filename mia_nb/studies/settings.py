"""Settings: a network, how it was trained and queried, and the attack that was run on it."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import NamedTuple

from mia_nb.checks import checked, quantity
from mia_nb.types import Recipe, Scores

NAMES = {
    "resnet14": "ResNet-14",
    "odenet": "ODENet",
    "odenet64": "ODENet-64",
    "anode": "ANODE",
    "sonode": "SONODE",
    "hbnode": "HBNODE",
    "sdenet": "SDENet",
    "replaced": "ResNet+SDENet",
}  # networks of the study of neural ODEs and SDEs
NOISY = ("sdenet", "replaced")
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")  # choose their own steps
SHAPES = {  # {(layout, order, damped, with extra channels): model}
    ("16-32-64", 1, False, False): "odenet",
    ("64", 1, False, False): "odenet64",
    ("64", 1, False, True): "anode",
    ("64", 2, False, False): "sonode",
    ("64", 2, True, False): "hbnode",
}
RESNET_BLOCKS = 3
TRAINED = ("convert", "hybrid", "direct")  # how spiking networks are trained
ALIGNED = "ann, aligned"
REFERENCES = {  # {references: in words, as the end of a setting's}
    "own": "",
    "ann": ", ANN references",
    ALIGNED: ", aligned ANN references",
}
DEFENSES = {
    "l1": "L1",
    "l2": "L2",
    "mmd_mixup": "MMD + Mixup",
    "dp_sgd": "DP-SGD",
    "memguard": "MemGuard",
    "relaxloss": "RelaxLoss",
    "hamp": "HAMP",
}
# Options of defenses that a setting does not name: those of the study's print, the confidence that
# MemGuard shows, which decides nothing, and options of DP-SGD that are off.
PRINTED_OPTIONS = {
    "dp_sgd": {"multiplicity": 1, "average": 0.0},
    "memguard": {"confidence": 0.5},
    "mmd_mixup": {"weight": 5e-4},
    "l2": {"weight": 1e-5},
    "l1": {"weight": 1e-5},
}
NOISE_IN = {  # {(noise in training, noise in queries): in words}
    (True, True): "both",
    (True, False): "training alone",
    (False, True): "queries alone",
    (False, False): "neither",
}


class Setting(NamedTuple):
    """One row of a study: a network, how it was trained and queried, and an attack on it.

    Fields that do not apply keep their defaults. `studies.setting` makes one from stored signals.

    Parameters:
        model: "resnet14", "odenet", "odenet64", "anode", "sonode", "hbnode", "sdenet", "replaced";
            "ann" or "snn" in the spiking study; any other name in tables of defenses. An "sdenet"
            of k = 0 is an "odenet".
        blocks: per group; residual blocks of a ResNet-14, of which the study has 3.
        method: the solver.
        augment: extra channels of an anode.
        k: standard deviation of the noise added per step.
        steps: of the solver; adaptive ones choose their own.
        T: integration time.
        noise_train: whether the noise was on in training.
        noise: whether the noise was on when queried.
        queries: outputs averaged for a sample.
        defense: in training, a name of `mia_nb.defenses`.
        output: defense of the outputs, a name of `mia_nb.defenses`.
        options: of defenses, in words; they distinguish settings and exclude none.
        variant: in words, a property that the study does not have ("frozen", "gn"); a setting with
            one is in no printed table and decides no claim.
        training: of a spiking network "convert", "hybrid" or "direct"; "" for an ordinary one.
        timesteps: of a spiking network; 0 for an ordinary one.
        input_dropout: whether inputs were dropped when queried.
        references: "own" for those of its own family, "ann" for transfer, or "ann, aligned" for
            transfer with both sides on one scale (`attacks.align`), which the study did not do.
        recipe: its name, in comparisons of recipes.
        epochs: of the recipe.
        schedule: of the recipe.
        augmentation: of the recipe.
        rest: all entries of the recipe that have no field here, as JSON.
        attack: a name of attacks.ATTACKS.
    """

    model: str = ""
    blocks: int = 1
    method: str = "euler"
    augment: int = 0
    k: float = 0.0
    steps: int = 16
    T: float = 1.0
    noise_train: bool = True
    noise: bool = True
    queries: int = 1
    defense: str = ""
    output: str = ""
    options: str = ""
    variant: str = ""
    training: str = ""
    timesteps: int = 0
    input_dropout: bool = False
    references: str = "own"
    recipe: str = ""
    epochs: int = 0
    schedule: str = ""
    augmentation: str = ""
    rest: str = ""
    attack: str = ""

    def __repr__(self) -> str:
        """The fields that differ from their defaults."""
        fields = []
        for name, value in self._asdict().items():
            if value != self._field_defaults[name]:
                fields.append(f"{name}={value!r}")
        return f"Setting({', '.join(fields)})"

    @property
    def stochastic(self) -> bool:
        """Whether outputs differ from query to query."""
        return self.k > 0 and self.noise

    @property
    def adaptive(self) -> bool:
        return self.method in ADAPTIVE

    @property
    def sigma(self) -> float:
        """Diffusion coefficient k sqrt(steps / T): the study's sigma."""
        return self.k * math.sqrt(self.steps / self.T)

    @property
    def noise_sd(self) -> float:
        """Standard deviation k sqrt(steps) of the noise in the state at T when the drift is 0."""
        return self.k * math.sqrt(self.steps)

    @property
    def noise_in(self) -> str:
        """Where the noise was on, in words."""
        return NOISE_IN[self.noise_train, self.noise]

    @property
    def name(self) -> str:
        """The equation's name."""
        return NAMES.get(self.model, self.model)

    @property
    def label(self) -> str:
        """The models in words, without queries and attack: "SDENet sigma=2, 2 blocks, L2"."""
        if self.recipe:
            return self.recipe
        if self.model == "ann":
            return "ANN"
        if self.model == "snn":
            return f"SNN {self.training} T={self.timesteps}"
        details = []
        usual_blocks = RESNET_BLOCKS if self.model == "resnet14" else 1
        if self.blocks != usual_blocks:
            details.append(quantity(self.blocks, "block"))
        if self.method != "euler":
            details.append(self.method)
        if self.steps != 16:
            details.append(f"{self.steps} steps")
        if self.T != 1:
            details.append(f"T={self.T:g}")
        return self._described(*details, self.options)

    @property
    def short(self) -> str:
        """The label without size, solver and options of defenses."""
        return self._described()

    def _described(self, *details: str) -> str:
        """The network, its defenses, these details and its noise in words."""
        name = self.name
        if self.augment:
            name += f"+{self.augment}"
        if self.model in NOISY:
            name += f" sigma={self.sigma:.3g}"
        words = [name]
        for defense in (self.defense, self.output):
            words.append(DEFENSES.get(defense, defense.replace("_", " ")))
        words += details
        if not self.noise_train:
            words.append("trained without noise")
        if not self.noise:
            words.append("noise off")
        return ", ".join(filter(None, [*words, self.variant]))

    @property
    def counted(self) -> str:
        """The number of queries in words."""
        return quantity(self.queries, "query", "queries")

    @property
    def models(self) -> str:
        """The models in words and how often they were queried, where that is more than once."""
        if self.queries == 1:
            return self.label
        return f"{self.label}, {self.counted}"

    @property
    def where(self) -> str:
        """The whole setting in words, without the attack."""
        dropout = " with dropout" if self.input_dropout else ""
        return self.models + dropout + REFERENCES[self.references]


@checked
def setting(info: dict | Recipe, attack: str = "", *, label: str = "") -> Setting:
    """The setting of signals, or of a recipe, with the attack that was run on it.

    Parameters:
        info: `Signals.info`, or the `Recipe` of a pool; snapshots of the recipe are ignored, as
            they change no model.
        attack: a name of attacks.ATTACKS, "" for none.
        label: the name of a recipe (`training.labels`).

    Returns:
        A `Setting`. A flow network is named by its equation, so that an "odenet" built with noise
        is an "sdenet"; other networks (tinycnn) keep their name. An "snn" has its way of training
        and its time steps, any network queried with input dropout the number of its queries.
        Options of defenses that the study does not print go into `options`; a frozen network, a
        Lipschitz bound, a clipped state, another norm than "bn", and a replaced network made of
        another one than ResNet-14 into `variant`.

    Raises:
        ValueError: when signals name no model, or a flow network that the study does not have, and
            when those of a spiking network have no recipe.

    Caveat: a setting of signals holds no epochs and schedules, so one network trained for 8 and for
    16 epochs gives one setting: pass the recipe to distinguish them.
    """
    if isinstance(info, Recipe):
        return _of_recipe(info, label, attack)
    model = info.get("model")
    if not model:
        raise ValueError("signals name no model: make them with query(pool)")
    defense = info.get("defense") or ""
    output = info.get("output") or ""
    options = [
        _options(defense, info.get("defense_args")),
        _options(output, info.get("output_args")),
    ]
    described = Setting(
        model,
        defense=defense,
        output=output,
        options=", ".join(filter(None, options)),
        attack=attack,
    )
    if info.get("input_dropout"):
        # without it (and without noise) all queries give the same answer
        described = described._replace(input_dropout=True, queries=info.get("queries", 1))
    if model == "resnet14":
        described = described._replace(blocks=info.get("blocks", RESNET_BLOCKS))
    elif model == "snn":
        described = described._replace(**_spiking_fields(info))
    elif model in NAMES:
        described = described._replace(**_flow_fields(info))
    return normal(described)


def _of_recipe(recipe: Recipe, label: str, attack: str) -> Setting:
    """The setting of a recipe; all entries that have no field go into `rest`."""
    entries = recipe.to_json()
    entries.pop("snapshots")
    return Setting(
        recipe=label,
        epochs=entries.pop("epochs"),
        schedule=entries.pop("schedule"),
        augmentation=entries.pop("augment"),
        rest=json.dumps(entries, sort_keys=True),
        attack=attack,
    )


def _spiking_fields(info: dict) -> dict[str, object]:
    """The fields of a setting that signals of a spiking network say."""
    recipe = info.get("recipe")
    if not recipe:
        raise ValueError(
            "signals of a spiking network name no recipe, which says how it was trained: make them"
            " with query(pool), those that are stored already with query(pool, force=True)"
        )
    if recipe["parent"] is None:
        training = "direct"
    elif recipe["epochs"]:
        training = "hybrid"
    else:
        training = "convert"
    return {"training": training, "timesteps": info["timesteps"]}


def _flow_fields(info: dict) -> dict[str, object]:
    """The fields of a setting that signals of a flow network say, with its model's equation."""
    flow = info["flow"]
    noise = info.get("noise")
    if noise is None:
        noise = flow["noise_eval"]
    fields = {
        "model": _equation(info["model"], flow),
        "noise": bool(noise),
        "queries": info.get("queries", 1),
        "variant": _variant(info),
    }
    for name in ("blocks", "method", "augment", "k", "steps", "T", "noise_train"):
        fields[name] = flow[name]
    return fields


def _equation(model: str, flow: dict) -> str:
    """The key of NAMES of a flow network."""
    if model == "replaced":
        return model
    shape = (flow["layout"], flow["order"], flow["damped"], flow["augment"] > 0)
    if shape not in SHAPES:
        raise ValueError(
            f"a {model} of layout, order, damping, extra channels {shape} is none of"
            f" {', '.join(NAMES)}"
        )
    if SHAPES[shape] == "odenet" and (flow["k"] > 0 or model == "sdenet"):
        return "sdenet"
    return SHAPES[shape]


def _options(name: str, options: dict | None) -> str:
    """Options of a defense in words, except those that have the study's printed value."""
    printed = PRINTED_OPTIONS.get(name, {})
    words = []
    for key, value in sorted((options or {}).items()):
        if printed.get(key) != value:
            text = f"{value:g}" if isinstance(value, int | float) else value
            words.append(f"{key.replace('_', ' ')} {text}")
    return ", ".join(words)


def _variant(info: dict) -> str:
    """What sets a network apart from the study's."""
    flow = info["flow"]
    words = []
    if info.get("freeze"):
        words.append("frozen")
    for bound in ("lipschitz", "clip"):
        if flow.get(bound) is not None:
            words.append(f"{bound} {flow[bound]:g}")
    norm = flow.get("norm") or "bn"
    if norm != "bn":
        words.append(norm)
    base = info.get("base") or "resnet14"
    if info["model"] == "replaced" and base != "resnet14":
        words.append(f"made of {base}")
    return ", ".join(words)


def normal(setting: Setting) -> Setting:
    """The setting with defaults in all fields that do not apply to its model.

    Raises ValueError for an impossible setting.
    """
    not_spiking = setting.training == "" and setting.timesteps == 0 and setting.references == "own"
    spiking = setting.training in TRAINED and setting.timesteps > 0
    impossible = (
        (setting.model == "ann" and not not_spiking)
        or (setting.model == "snn" and not spiking)
        or setting.references not in REFERENCES
        or (setting.k != 0 and setting.model not in NOISY)
        or (setting.augment != 0 and setting.model != "anode")
        or setting.k < 0
        or setting.T <= 0
        or min(setting.blocks, setting.steps, setting.queries) < 1
    )
    if impossible:
        raise ValueError(
            f"{setting} cannot be: an ann has no training, timesteps or references of another"
            f" family, a snn is trained by {', '.join(TRAINED)} for at least 1 timestep;"
            f" references are one of {tuple(REFERENCES)}; noise (k) is for {' and '.join(NOISY)}"
            " alone, augment for anode alone; k >= 0, T > 0, and at least 1 block, step and query"
        )
    if setting.model == "resnet14":
        setting = setting._replace(method="euler", steps=16, T=1.0)
    if setting.adaptive:
        setting = setting._replace(steps=16)
    if not setting.k:
        setting = setting._replace(noise_train=True, noise=True)
    varied = setting.stochastic or setting.input_dropout
    if not varied and setting.model not in ("ann", "snn"):
        setting = setting._replace(queries=1)
    return setting


def usable(settings: dict[Setting, Scores], models: Sequence[str] = ()) -> dict[Setting, Scores]:
    """The settings in normal form, with their scores.

    A network without noise has the same output in every query without input dropout, so only the
    first of several numbers of queries is kept.

    Parameters:
        settings: {setting: scores}
        models: those that the study has; empty for any

    Raises:
        ValueError: for an impossible setting, and for one without a target.
    """
    by_setting: dict[Setting, Scores] = {}
    for key, scores in settings.items():
        setting = normal(key)
        if models and setting.model not in models:
            known = ", ".join(models)
            raise ValueError(
                f"{setting.model!r} is no model of this study: wanted one of {known}; where yours"
                " stands for one, setting._replace(model=...) names it"
            )
        if not len(scores.value):
            raise ValueError(f"{setting} has no target: score at least one")
        by_setting.setdefault(setting, scores)
    return by_setting
