"""What the study of neural ODE and SDE classifiers printed, and ours beside it: its settings, cell by cell."""

from __future__ import annotations

import math
from typing import NamedTuple

import pandas as pd

from mia_nb.checks import checked
from mia_nb.metrics.published import beside, measure, records
from mia_nb.metrics.uncertainty import RESAMPLES
from mia_nb.types import Scores

PAPER = "nsde2025"
NAMES = {
    "resnet14": "ResNet-14", "odenet": "ODENet", "odenet64": "ODENet-64", "anode": "ANODE", "sonode": "SONODE",
    "hbnode": "HBNODE", "sdenet": "SDENet", "replaced": "ResNet+SDENet",
}  # fmt: skip
NOISY = ("sdenet", "replaced")
SHAPES = {  # layout, order, damped, with extra channels
    ("16-32-64", 1, False, False): "odenet",
    ("64", 1, False, False): "odenet64",
    ("64", 1, False, True): "anode",
    ("64", 2, False, False): "sonode",
    ("64", 2, True, False): "hbnode",
}
ADAPTIVE = ("dopri5", "dopri8", "bosh3", "fehlberg2", "adaptive_heun")  # choose their own steps
RESNET_BLOCKS = 3
TABLES = ("I", "II", "III", "IV", "V", "VII", "VIII", "IX", "X", "XII")
PRINTED_MODELS = {
    "resnet14": "resnet14", "odenet-16-32-64": "odenet", "odenet-64": "odenet64", "anode-64": "anode", "sonode-64": "sonode",
    "hbnode-64": "hbnode", "sdenet-16-32-64": "sdenet", "resnet14+sdenet": "replaced",
}  # fmt: skip
PRINTED_ATTACKS = {
    "yeom": ("loss",), "shokri": ("shokri",), "song-mittal": ("song_mittal",), "watson": ("watson",), "rmia": ("rmia",),
    "lira": ("lira_global", "lira_per_sample"),
}  # fmt: skip
PRINTED_K = {
    0.71: math.sqrt(0.5),
    0.35: math.sqrt(0.125),
    0.18: math.sqrt(0.03125),
    0.13: 0.125,
}  # what was rounded
PRINTED_SCHEME = "stochastic RK4"
NEAR = 0.055  # printed sigmas have one decimal


class FlowCell(NamedTuple):
    """One setting of the study of neural ODE and SDE classifiers and the attack that was run in it.

    `blocks` per group: ODE or SDE blocks of a flow network, residual blocks of a ResNet-14, which are not the same thing;
    FlowCell("resnet14", 3) is the study's. "odenet" has groups of 16, 32 and 64 widened channels, "odenet64" and its variants
    one group; an "sdenet" of k = 0 is an "odenet". `k`: standard deviation of the noise added per step. `queries`: answers
    averaged per sample. `variant`: in words, what the study does not know ("frozen", "gn", "made of odenet"); a cell with one
    stands in no printed table and decides no claim.
    """

    model: str  # a key of NAMES
    blocks: int = 1
    method: str = "euler"
    augment: int = 0  # extra channels of an anode
    k: float = 0.0
    steps: int = 16
    T: float = 1.0
    noise_train: bool = True
    noise: bool = True  # was it on when the models were asked
    queries: int = 1
    attack: str = "lira_global"  # as in attacks.ATTACKS
    variant: str = ""

    @property
    def stochastic(self) -> bool:
        """Whether answers to one question differ."""
        return self.k > 0 and self.noise

    @property
    def sigma(self) -> float:
        """Diffusion coefficient k sqrt(steps / T): the study's sigma."""
        return self.k * math.sqrt(self.steps / self.T)

    @property
    def noise_sd(self) -> float:
        """Standard deviation k sqrt(steps) of the noise in the state at T when the drift is 0."""
        return self.k * math.sqrt(self.steps)

    @property
    def label(self) -> str:
        """The models in words, without queries and attack: "SDENet sigma=2, 2 blocks"; what differs from the defaults."""
        name = NAMES[self.model] + (f"+{self.augment}" if self.augment else "")
        usual = RESNET_BLOCKS if self.model == "resnet14" else 1
        words = [
            f"{name} sigma={self.sigma:.3g}" if self.model in NOISY else name,
            f"{self.blocks} block{'s' * (self.blocks != 1)}" if self.blocks != usual else "",
            self.method if self.method != "euler" else "",
            f"{self.steps} steps" if self.steps != 16 else "",
            f"T={self.T:g}" if self.T != 1 else "",
            "" if self.noise_train else "trained without noise",
            "" if self.noise else "noise off",
            self.variant,
        ]
        return ", ".join(filter(None, words))


@checked
def flow_cell(info: dict, attack: str) -> FlowCell:
    """The setting of signals, from `Signals.info`, with the attack that was run on them.

    The model is named by its equation, so that an "odenet" built with noise is an "sdenet". `variant` says what the study does
    not know: a frozen network, a Lipschitz bound, a clipped state, another norm than "bn", a replaced network made of another
    one than ResNet-14. Raises ValueError when the signals are of no model of the study, or do not say how their flow was
    integrated.
    """
    model, flow = info.get("model"), info.get("flow")
    if model not in NAMES:
        raise ValueError(
            f"signals of model {model!r} have no place in this study: wanted one of {', '.join(NAMES)}"
        )
    if model == "resnet14":
        return flow_checked_cell(FlowCell(model, info.get("blocks", RESNET_BLOCKS), attack=attack))
    if flow is None:
        raise ValueError(
            f"signals of {model} do not say how it was integrated (info['flow']): ask the models again"
        )
    if model != "replaced":
        shape = (flow["layout"], flow["order"], flow["damped"], flow["augment"] > 0)
        if shape not in SHAPES:
            raise ValueError(
                f"a {model} of layout, order, damping, extra channels {shape} is none of {', '.join(NAMES)}"
            )
        noisy = SHAPES[shape] == "odenet" and (flow["k"] > 0 or model == "sdenet")
        model = "sdenet" if noisy else SHAPES[shape]
    about = {
        "queries": info.get("queries", 1),
        "attack": attack,
        "variant": _variant(info, model == "replaced"),
    }
    noise = flow["noise_eval"] if info.get("noise") is None else info["noise"]
    numbers = {
        name: flow[name]
        for name in ("blocks", "method", "augment", "k", "steps", "T", "noise_train")
    }
    return flow_checked_cell(FlowCell(model, **numbers, noise=bool(noise), **about))


def _variant(info: dict, replaced: bool) -> str:
    """What sets a network apart from the study's."""
    flow, base = info["flow"], info.get("base") or "resnet14"
    norm = flow.get("norm") or "bn"
    bounds = [
        f"{name} {flow[name]:g}" for name in ("lipschitz", "clip") if flow.get(name) is not None
    ]
    words = ["frozen" if info.get("freeze") else "", *bounds, norm if norm != "bn" else ""]
    words += [f"{kind} {info[kind]}" for kind in ("defense", "output") if info.get(kind)]
    return ", ".join(
        filter(None, [*words, f"made of {base}" if replaced and base != "resnet14" else ""])
    )


def flow_checked_cell(cell: FlowCell) -> FlowCell:
    """The cell with everything that does not apply to its model at its default; ValueError for one that cannot be."""
    cell = FlowCell(*cell)
    if cell.model not in NAMES:
        raise ValueError(
            f"{cell.model!r} is no model of this study: wanted one of {', '.join(NAMES)}"
        )
    if (cell.k and cell.model not in NOISY) or (cell.augment and cell.model != "anode"):
        raise ValueError(
            f"{cell} cannot be: noise (k) is for {' and '.join(NOISY)} alone, augment for anode alone"
        )
    if cell.k < 0 or cell.T <= 0 or min(cell.blocks, cell.steps, cell.queries) < 1:
        raise ValueError(
            f"{cell} cannot be: wanted k >= 0, T > 0, and at least 1 block, step and query"
        )
    if cell.model == "resnet14":
        cell = cell._replace(method="euler", steps=16, T=1.0)
    if cell.method in ADAPTIVE:
        cell = cell._replace(steps=16)
    if not cell.k:
        cell = cell._replace(noise_train=True, noise=True)
    return cell if cell.k and cell.noise else cell._replace(queries=1)


def flow_checked(cells: dict) -> dict[FlowCell, Scores]:
    """The cells with their settings checked; ValueError for one that cannot be, or one without a target.

    A network without noise answers every query alike: of several numbers of queries the first given stays.
    """
    found: dict[FlowCell, Scores] = {}
    for key, scores in cells.items():
        if not len(scores.value):
            raise ValueError(f"{FlowCell(*key)} has no target: score at least one")
        found.setdefault(flow_checked_cell(key), scores)
    return found


@checked
def flow_against_papers(
    cells: dict[FlowCell, Scores],
    *,
    stands_for: str | None = "cifar10",
    ours: str = "",
    tables=TABLES,
    draws: int = RESAMPLES,
    seed: int = 0,
) -> pd.DataFrame:
    """One row per number printed in these tables of Hong, Wu, Gruber and Lee (arXiv 2501.06686), ours beside it.

    stands_for: the printed data set whose rows ours is placed in; None places it nowhere. ours: what ours really is, say
    "digits, 8x8", for the note. Columns: paper, table, dataset, printed (label, or row and block of Table XII), setting,
    attack, metric, published, ours, low, high (as in `intervals`; accuracies and generalization gap: Student's t over
    pairs), measurable, n0, note, then the printed setting (model, blocks, method, augment, k, steps, T, sigma, noise_sd).
    "accuracy" is the attack's, at its best threshold. Raises ValueError for a table that has no place here.

    Ours is placed by model, blocks, channels, solver, and for stochastic models sigma, steps and T, with noise on in
    training and asking and the fewest queries, whose number the study does not state; neither does it state the steps of the
    ODENets and which form of LiRA it ran. SDENets are placed whatever their scheme, cells with a variant nowhere. The note
    says what differs.
    """
    cells, printed = flow_checked(cells), [r for r in records() if r["paper"] == PAPER]
    if strange := sorted(set(tables) - set(TABLES)):
        raise ValueError(
            f"table {', '.join(strange)} has no place here: wanted some of {', '.join(TABLES)}"
        )
    place = f"ours is {ours}" if ours else f"ours stands for {stands_for or 'nothing'}"
    measured: dict[FlowCell, dict] = {}
    rows = []
    for record in (r for r in printed if r["table"] in tables):
        here = record["dataset"] == stands_for
        wanted = printed_cell(record)
        cell = _find(cells, wanted, PRINTED_ATTACKS.get(record["attack"], ())) if here else None
        if cell is not None and cell not in measured:
            measured[cell] = measure(cells[cell], draws, seed)
        notes = [
            *_oddities(record),
            *(["not run"] if cell is None else _differences(wanted, cell, record["attack"])),
        ]
        notes += [measured[cell]["few"] if cell else "", place if cell or not here else ""]
        rows.append(_row(record, wanted, measured.get(cell), "; ".join(filter(None, notes))))
    return pd.DataFrame(rows)


def printed_cell(record: dict) -> FlowCell:
    """A record's setting in our words, with the k whose rounding was printed; attack "" for what no attack has."""
    model, setting = PRINTED_MODELS[record["model"]], record["setting"]
    sigma = setting.get("sigma", 2.0 if model == "replaced" else 0.0)
    steps, T = setting.get("s", 16), setting.get("T", 1.0)
    k = (
        PRINTED_K.get(setting["k"], setting["k"])
        if "s" in setting
        else sigma * math.sqrt(T / steps)
    )
    method = "stoch_rk4" if model in NOISY else setting.get("solver", "euler")
    blocks = setting.get("blocks", RESNET_BLOCKS if model == "resnet14" else 1)
    attack = PRINTED_ATTACKS.get(record["attack"], ("",))[0]
    return FlowCell(model, blocks, method, setting.get("augment", 0), k, steps, T, attack=attack)


def _find(cells: dict, wanted: FlowCell, attacks: tuple[str, ...]) -> FlowCell | None:
    """Our cell for a printed one, any attack where the number is no attack's; an sdenet without noise is an odenet."""
    models = [
        wanted.model,
        *(
            {"sdenet": ["odenet"], "odenet": ["sdenet"]}.get(wanted.model, [])
            if not wanted.k
            else []
        ),
    ]
    found = [
        cell
        for cell in cells
        if cell.model in models
        and (cell.attack in attacks or not attacks)
        and _same_setting(cell, wanted)
    ]

    def order(cell: FlowCell) -> tuple:
        attack = attacks.index(cell.attack) if attacks else 0
        return (
            models.index(cell.model),
            cell.blocks != wanted.blocks,
            cell.steps != wanted.steps,
            cell.queries,
            attack,
        )

    return min(found, key=order, default=None)


def _same_setting(cell: FlowCell, wanted: FlowCell) -> bool:
    if cell.variant:
        return False
    if wanted.model == "resnet14":
        return True
    same = (
        (cell.blocks, cell.augment, cell.T) == (wanted.blocks, wanted.augment, wanted.T)
        and cell.noise
        and cell.noise_train
    )
    if wanted.model in NOISY:
        return (
            same
            and bool(cell.k) == bool(wanted.k)
            and cell.steps == wanted.steps
            and abs(cell.sigma - wanted.sigma) < NEAR
        )
    return same and not cell.k and cell.method == wanted.method


def _differences(wanted: FlowCell, cell: FlowCell, attack: str | None) -> list[str]:
    """How our cell is not the printed one, and what the print leaves open."""
    different = (
        cell.blocks != wanted.blocks or cell.steps != wanted.steps or cell.model != wanted.model
    )
    return [
        f"ours is {cell.label}" if different else "",
        f"print: {PRINTED_SCHEME}, ours: {cell.method}" if wanted.model in NOISY else "",
        f"queries per model not printed, ours: {cell.queries}" if cell.k else "",
        f"form of LiRA not printed, ours: {cell.attack}" if attack == "lira" else "",
    ]


def _oddities(record: dict) -> list[str]:
    """What is strange about a printed number: its own note, and attacks that a coin beats."""
    notes = [f"print: {record['note']}"] if "note" in record else []
    if record["metric"] == "auc" and record["value"] < 0.5:
        notes.append("print: AUC below 0.5, worse than a coin")
    return notes


def _row(record: dict, wanted: FlowCell, found: dict | None, note: str) -> dict:
    setting = record["setting"]
    row = {name: record[name] for name in ("paper", "table", "dataset")}
    row["printed"] = (
        f"row {setting['row']}, {setting['impact']}" if "row" in setting else setting["label"]
    )
    row |= {
        "setting": wanted.label,
        "attack": wanted.attack,
        "metric": record["metric"],
        "published": record["value"],
    }
    row |= beside(record["metric"], found) | {"note": note}
    fields = ("model", "blocks", "method", "augment", "k", "steps", "T", "sigma", "noise_sd")
    return row | {name: getattr(wanted, name) for name in fields}
