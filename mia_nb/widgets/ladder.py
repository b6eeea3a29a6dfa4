"""The privacy ladder: what is claimed, proved and exceeded, as noise, epochs and delta move."""

import contextlib
import math
import re
from collections.abc import Sequence
from functools import cache, partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from mia_nb import accounting, auditing, plots
from mia_nb.auditing.ladder import number
from mia_nb.plots.style import BELOW, DASHES, GREY, SMALL, finish, translucent
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import (
    Explorer,
    View,
    buttons,
    count,
    dropdown,
    plain,
    remarks,
    slider,
    steps,
    with_layout,
    with_title,
    worded,
)
from mia_nb.widgets.pools import Pools
from mia_nb.widgets.stored import Source, list_of_sources, named

TITLE = "Privacy ladder"
FORMULAS = "no pool: formulas only"
DESIGNED = (
    "members drawn by split={!r} are no fair coins, which the bound rests on; train the pool with"
    " split='bernoulli'"
)
ATTACKS = ("rmia", "lira_global", "loss")  # chosen beforehand: each is paid for in confidence
ACCOUNTANTS = {
    "GDP fixed": ("gdp", "uniform"),
    "GDP Poisson": ("gdp", "poisson"),
    "RDP": ("rdp", "poisson"),
}
DELTAS = [float(f"{digit}e{power}") for power in range(-7, -2) for digit in (1, 2, 5)] + [1e-2]
# arXiv 2501.06686
STUDY = {
    "samples": 25_000,
    "batch": 512,
    "epochs": 300,
    "sigma": 2.0,
    "steps": 16,
    "T": 1.0,
    "clip": 0.5,
}
NO_RECIPE = "rows 1, 2 and 4 lack the recipe of the training: it is not stored with these signals"
DERIVED = "a derived pool's own steps say nothing of what its parent saw: no row counts them"
VACUOUS = 0.99
NOT_COMPARED = "row 5 belongs to the stored training: not compared"


class Training(NamedTuple):
    """What an accountant wants to know of a training; None where it is not known or does not
    apply.
    """

    flow: dict | None
    noise_multiplier: float | None  # of DP-SGD
    sample_rate: float | None
    per_epoch: int  # optimiser steps
    epochs: int
    why: str = ""  # a number is missing

    @property
    def noise(self) -> float:
        """What the slider starts at: sigma of the equation, else DP-SGD's noise multiplier, else
        0.
        """
        return round(float(self.flow["sigma"]) if self.flow else self.noise_multiplier or 0.0, 4)

    @property
    def private(self) -> bool:
        """Whether the slider is DP-SGD's noise multiplier."""
        return self.noise_multiplier is not None and not self.flow

    @property
    def noisy(self) -> bool:
        return self.private or bool(self.flow)


def ladder(sources: Sequence[Source] = (), *, delta: float = 1e-5) -> Explorer:
    """The five rows of `auditing.ladder`, and trade-off curves over the ROC of an attack, with
    sliders for what they rest on.

    Parameters:
        sources: what to choose the pool from, as `sources` gives them; () for formulas only
        delta: above 0 and below 1, where its slider starts

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` and `html()` export it. Without sources a message that says what to run.

    Raises:
        ValueError: for a delta outside (0, 1).

    Sigma: of the equation, k = sigma sqrt(T / steps); of a network trained by DP-SGD its noise
    multiplier. Epochs: times the steps of one epoch. Rows 1 to 4 follow; row 5 and the ROC are of
    the training that is stored, so that they are compared only where noise and epochs stand at its
    values. Without a pool the rows are those of the study's setting (sigma 2, 300 epochs; 25,000
    records, batch 512, clip 0.5 and L are assumed here). Accountant: closed forms of GDP, an
    approximation and no guarantee; or RDP, an upper statement. Row 4 takes RDP in either case; PRV,
    about 5 to 20 % lower, takes up to seconds: `auditing.ladder(accountant="prv")`. Row 5:
    `auditing.audit` of half of the models with the attack chosen, alpha divided by the attacks
    offered.

    Source: Hong, Wu, Gruber and Lee, arXiv 2501.06686.

    Caveat: pools whose members were not drawn by coins cannot be audited this way, and say so.
    """
    sources = list_of_sources(sources)
    if not 0 < delta < 1:
        raise ValueError(f"delta={delta}: wanted a number above 0 and below 1, say 1e-5")
    found = named(sources)
    training = cache(lambda name: known(found.get(name)))
    base = cache(lambda name, attack: frame(found.get(name), attack))
    rates = cache(lambda name, attack: measured(found.get(name), attack))

    def offered(source) -> list[str]:
        names = found[source].attacks() if source in found else []
        return [name for name in ATTACKS if name in names] or ["none"]

    @cache
    def evidence(source, attack, delta) -> tuple:
        return audited(found.get(source), attack, delta, len(offered(source)))

    def draw(source, attack, sigma, epochs, lipschitz, delta, accountant) -> View:
        own, (record, why) = training(source), evidence(source, attack, delta)
        moved = moves(own, sigma, epochs) if source in found else []
        assumed = None if source in found else lipschitz
        table = rungs(own, sigma, epochs, delta, accountant, record, why, moved, assumed)
        figure = plain(plots.ladder(table))
        coins = f"; m = {record.canaries:,} coins" if record else ""
        sentence = figure["layout"]["title"]["text"].replace("<br>", " ")
        sentence += f" (delta {delta:g}, add/remove one record{coins})"
        roc = with_bounds(base(source, attack), claims(table), delta, rates(source, attack), moved)
        columns = table[["label", "shown", "relation", "verdict", "method", "note", "remark"]]
        return View(
            sentence,
            {"ladder": narrow(figure), "roc": roc},
            columns,
            note(own, assumed, moved, why),
        )

    first = start(found)
    deltas = sorted({*DELTAS, float(delta)})
    marks = [(f"{one:.0e}" if one in DELTAS else f"{one:g}", one) for one in deltas]
    controls = {
        "source": Pools("pool", [FORMULAS, *found], first),
        "attack": dropdown("attack"),
        "sigma": steps("sigma", strengths(STUDY["sigma"]), STUDY["sigma"]),
        "epochs": count("epochs"),
        "lipschitz": slider("L", 0.0, 10.0, 1.0, 0.1),
        "delta": steps("delta", marks, float(delta)),
        "accountant": buttons("accountant", list(ACCOUNTANTS), next(iter(ACCOUNTANTS))),
    }
    follow = {
        "attack": {"options": lambda source: worded(offered(source))},
        "lipschitz": {"disabled": lambda source: source != FORMULAS},
        "sigma": {
            "disabled": lambda source: not training(source).noisy,
            "description": lambda source: "noise" if training(source).private else "sigma",
            "options": lambda source: strengths(training(source).noise),
            "value": lambda source: training(source).noise,
        },
        "epochs": {
            "disabled": lambda source: not (training(source).noisy and training(source).per_epoch),
            "max": lambda source: max(300, training(source).epochs),
            "value": lambda source: max(training(source).epochs, 1),
        },
        "accountant": {"disabled": lambda source: not training(source).flow},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["ladder"], ["roc"]],
        follow=follow,
        heights={"ladder": 280, "roc": 270},
        pools={FORMULAS: (), **found},
    )


def strengths(trained: float) -> list[tuple[str, float]]:
    """Values of the noise to choose from, that of the training among them: a slider with steps
    would round it.
    """
    values = np.arange(0, max(4.0, 2 * trained) + 0.01, 0.05).round(4)
    return [(f"{value:g}", value) for value in sorted({*values.tolist(), trained})]


def start(found: dict[str, Source]) -> str:
    """A pool with noise whose members were drawn by coins, else one drawn by coins, else the first,
    else no pool.
    """
    coins = []
    for name, source in found.items():
        # a damaged pool is no reason to start with none
        with contextlib.suppress(ValueError, OSError, KeyError):
            coins += [name] if source.recipe.get("split") == "bernoulli" else []
    noisy = [name for name in coins if (found[name].info.get("flow") or {}).get("k")]
    return next(iter([*noisy, *coins, *found]), FORMULAS)


def known(source: Source | None) -> Training:
    """Noise, sampling rate and steps of a stored training, or of the study's."""
    if source is None:
        flow = {name: STUDY[name] for name in ("sigma", "steps", "T", "clip")} | {"method": "euler"}
        flow["k"] = spread(flow, flow["sigma"])
        steps = -(-STUDY["samples"] // STUDY["batch"])
        rate = STUDY["batch"] / STUDY["samples"]
        return Training(flow, None, rate, steps, STUDY["epochs"])
    recipe = source.recipe
    flow = source.info.get("flow")
    if flow and source.info.get("noise") is False:
        flow = flow | {"noise_eval": False}
    epochs = source.info.get("epoch") or recipe.get("epochs", 0)
    if not recipe or recipe.get("parent"):
        return Training(flow, None, None, 0, epochs, DERIVED if recipe else NO_RECIPE)
    args = recipe.get("defense_args", {}) if recipe.get("defense") == "dp_sgd" else {}
    stored = source.pool is not None
    batch = recipe["batch"]
    member = source.pool.read_array("member.npy") if stored else source.signals.member
    members = int(member.sum(1).mean())
    if recipe.get("split") == "bernoulli":  # as many as are expected
        members = (member.shape[1] - recipe.get("population", 0)) // 2
    rate = batch / members
    noise = args.get("noise_multiplier")
    return Training(flow, noise, rate, members // batch, epochs)


def spread(flow: dict, sigma: float) -> float:
    """k = sigma sqrt(T / steps)."""
    return sigma * math.sqrt(flow["T"] / flow["steps"])


def note(own: Training, lipschitz: float | None, moved: list[str], why: str) -> str:
    """What the numbers rest on, and what they do not say."""
    assumed = lipschitz is not None
    return remarks(
        {
            "none is an upper or lower bound of another; row 4 alone may be called a guarantee for"
            " the training set, and only of DP-SGD": True,
            own.why: own.why,
            "the study's setting; its records and batch are not stated: 25,000 and 512 are"
            " assumed": assumed,
            f"L = {lipschitz or 0:g} and clip {STUDY['clip']} are assumed too, nobody measured"
            " them": assumed,
            f"moved: {', '.join(moved)}; row 5 and the ROC are of the stored training and say"
            " nothing about this one": moved,
            "row 4 counts one training, not those that its settings took to"
            " find": own.noise_multiplier,
            f"no audit: {why}": why,
        }
    )


def moves(own: Training, sigma: float, epochs: int) -> list[str]:
    """Which values differ from those that the pool was trained with, in words."""
    word = "sigma" if own.flow else "noise multiplier"
    louder = [f"{word} {sigma:g}, trained with {own.noise:g}"] * (abs(sigma - own.noise) > 1e-6)
    longer = [f"{epochs} epochs, trained for {own.epochs}"] * (epochs != max(own.epochs, 1))
    return louder + longer


def rungs(own, sigma, epochs, delta, accountant, record, why, moved, lipschitz) -> pd.DataFrame:
    """`auditing.ladder` at the values set; row 4 by RDP; beside moved values an audit stands apart,
    uncompared.
    """
    how, sampling = ACCOUNTANTS[accountant]
    steps = epochs * own.per_epoch
    flow = own.flow
    nominal = {"sample_rate": own.sample_rate, "steps": steps} if steps else None
    if flow is not None and abs(sigma - own.noise) > 1e-6:
        flow = flow | {"k": spread(flow, sigma)}
    args = {"delta": delta, "audited": None if moved else record, "flow": flow}
    table = auditing.ladder(
        **args,
        nominal=nominal,
        lipschitz=None if lipschitz is None else {"certified": lipschitz},
        accountant=how,
        sampling=sampling,
    )
    if own.noise_multiplier is not None and nominal:
        dp_sgd = nominal | {"noise_multiplier": own.noise_multiplier if flow else sigma}
        table.loc[3] = auditing.ladder(**args, dp_sgd=dp_sgd, accountant="rdp").loc[3]
    if lipschitz is not None:
        table = table.replace(
            {"shown": "certified L", "method": "certified L"}, "assumed L", regex=True
        )
    if record is None:
        table.loc[4, ["note", "remark"]] = (
            "not audited: no pool, or members not drawn by coins" if why else "",
            why,
        )
    elif moved:
        table.loc[4] = auditing.ladder(delta=delta, audited=record).loc[4]
        table.loc[4, ["shown", "note"]] += [
            " (stored training)",
            "; of the stored training, not of the values set here",
        ]
        table.loc[table["epsilon"].notna() & (table["row"] < 5), "verdict"] = NOT_COMPARED
    return table


def audited(source: Source | None, attack: str, delta: float, attempts: int):
    """(record of the audit or None, why there is none)."""
    if source is None:
        return None, "no pool is chosen"
    # its mask does not tell where the complementary model was not queried
    if (split := source.recipe.get("split", "bernoulli")) != "bernoulli":
        return None, DESIGNED.format(split)
    try:
        split = auditing.score_split(attack, source.signals)
        return auditing.audit(split, delta=delta, attempts=attempts), ""
    except ValueError as error:
        return None, " ".join(str(error).split())


def narrow(figure: dict) -> dict:
    """For a column of a page: the sentence stands above already, notes may reach under the
    labels.
    """
    layout = figure["layout"]
    placed = {"x": 1, "xanchor": "right", "font": SMALL | {"size": 10}}
    notes = [note | placed for note in layout["annotations"]]
    names = [re.sub(r" (\(|with)", r"<br>\1", name) for name in layout["yaxis"]["ticktext"]]
    figure = with_layout(
        figure,
        annotations=notes,
        height=layout["height"] + 60,
        yaxis=layout["yaxis"] | {"ticktext": names},
    )
    return with_title(figure, "Five different epsilons; none is an upper or lower bound of another")


def claims(table: pd.DataFrame) -> dict[str, float]:
    """{name of a curve: epsilon}: what rows 1 and 4 state about the training; else two values to
    compare with.
    """
    nominal, proved = table.set_index("row").loc[[1, 4], "epsilon"]
    stated = {}
    if np.isfinite(nominal):
        stated[f"nominal epsilon {number(nominal)} (paper's accounting)"] = nominal
    if np.isfinite(proved):
        stated[f"DP-SGD's epsilon {number(proved, up=True)}"] = proved
    return stated or {"for reference: epsilon 1": 1.0, "for reference: epsilon 8": 8.0}


def measured(source: Source | None, attack: str) -> tuple[float, float, float, float, int] | None:
    """(fpr, tpr, low, high, n0) at the smallest false-positive rate with ten false positives."""
    if source is None:
        return None
    rows = compared.measure({"": source.scores(attack)})
    fpr = compared.rate(rows)
    row = rows.loc[""]
    return fpr and (fpr, *(row[f"tpr@{fpr:g}{end}"] for end in compared.ENDS), int(row["n0"]))


def frame(source: Source | None, attack: str) -> dict:
    """The ROC on logarithmic axes without any bound; empty axes without a pool."""
    if source is not None:
        return plain(plots.roc_bounds({attack: source.scores(attack)}, bounds=()))
    axis = {"type": "log", "dtick": 1, "tickformat": "~%", "range": [-6, 0.02]}
    names = {"xaxis": "false positives (FPR)", "yaxis": "members found (TPR)"}
    return plain(
        finish(
            go.Figure(),
            "",
            height=520,
            legend=BELOW,
            **{place: axis | {"title": name} for place, name in names.items()},
        )
    )


def with_bounds(figure: dict, curves: dict[str, float], delta: float, rate, moved) -> dict:
    """The ROC under the trade-off curves of (epsilon, delta) and the Gaussian ones of equal
    (epsilon, delta).
    """
    fpr = np.geomspace(10 ** figure["layout"]["xaxis"]["range"][0], 1, 200)
    traces, limits = [], []
    for i, (name, epsilon) in enumerate(curves.items()):
        mu = accounting.gaussian_mu(epsilon, delta)
        dashes = DASHES[2 * i % 4 + 1 :]
        limit = partial(accounting.tradeoff, epsilon=epsilon, delta=delta)
        traces += bound(name, fpr, limit(fpr), dashes[0])
        traces += bound(f"Gaussian of {name}", fpr, accounting.tradeoff(fpr, mu=mu), dashes[1])
        most = min(float(limit(rate[0])), 1) if rate else 1
        limits.append(f"{100 * most:.3g} % ({name.split(' (')[0]})")
    words = "The curves that rows 1 and 4 allow; no pool is chosen"
    if rate is not None:
        x, tpr, low, high, n0 = rate
        words = (
            f"At {100 * x:g} % false positives found {100 * tpr:.1f} % (95 %:"
            f" {100 * low:.1f}-{100 * high:.1f}, n0 = {n0:,});"
            f" {'stored training: not compared with' if moved else 'allowed'} {', '.join(limits)}"
        )
    return with_title(figure, words) | {"data": [*traces, *figure["data"]]}


def bound(name: str, fpr: np.ndarray, tpr: np.ndarray, dash: str) -> list[dict]:
    """A ceiling as plain traces, faint where it allows all there is to find."""
    usable = int((tpr <= VACUOUS).sum())
    same = {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "legendgroup": name,
        "hovertemplate": f"{name}: at most %{{y:.2%}} at %{{x:.3%}}<extra></extra>",
    }
    strong = {"color": GREY, "dash": dash, "width": 1.8}
    faint = {"color": translucent(GREY, 0.3), "dash": dash, "width": 1.2}
    parts = ((slice(usable + 1), True, strong), (slice(usable, None), False, faint))
    return [
        same
        | {"x": fpr[part].tolist(), "y": tpr[part].round(7).tolist()}
        | {"showlegend": shown, "line": line}
        for part, shown, line in parts
    ]
