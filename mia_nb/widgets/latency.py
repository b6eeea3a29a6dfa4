"""Latency: what an attacker learns from a spiking network after t of its T time steps, or from
networks of different T.
"""

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.special import expit

from mia_nb import attacks, plots
from mia_nb.plots.samples import empty
from mia_nb.plots.style import GREY
from mia_nb.types import Scores, Signals
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import (
    Explorer,
    View,
    dropdown,
    message,
    plain,
    remarks,
    steps,
    with_line,
    worded,
)
from mia_nb.widgets.networks import ORDINARY, Network, networks, query_call, recorder
from mia_nb.widgets.pools import Pools
from mia_nb.widgets.stored import ALL, Source, list_of_sources, only

TITLE = "Latency"
NOTHING = (
    "no spiking network is stored that was queried at several time steps; make some with:"
    " mia-nb run all --preset demo"
)
QUERY = "No spikes of this network are recorded; querying it step by step records some: {}"
RANDOM = (
    "Spikes of this network cannot be recorded: it encodes an image as random spikes, others"
    " whenever it is queried"
)
UNRECORDED = (("nothing recorded", -1),)
KEPT = 8  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
KINDS = {  # what a network gives: (the line of its curve, who is given what)
    "cumulative": (
        "after t steps",
        "an attacker who is given one output, at t; who sees that of every step has more",
    ),
    "instant": ("step t alone", "an attacker who is given the output of step t alone"),
    "": ("networks of T steps", "each T is a network of its own, with the same members"),
}


def latency(sources: Sequence[Source]) -> Explorer:
    """What one output after t time steps gives away, beside the ordinary network that the spiking
    one came from.

    Parameters:
        sources: what to find the networks in, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` and `html()` export it. Without sources a message that says what to run.

    Networks: every spiking pool that was queried step by step (query(..., per_step=True); t: the
    readout of the first t steps, or step t alone), and every set of spiking pools with the same
    members and recipe that differ in T (t: their T). The ordinary network has the same members and
    was queried in the same way, input dropout included; a parent comes before any other of the same
    architecture. Intervals: `metrics.intervals`; the difference of AUC is paired, from the same
    resamples of samples and pairs of targets.

    Caveat: networks that differ in accuracy compare unfairly; an attacker who is shown the outputs
        of all steps has more than one.
    """
    sources = list_of_sources(sources)
    found = networks(sources)
    if not found:
        return message(TITLE, NOTHING)
    scores_at = lru_cache(KEPT)(lambda network, attack, t: found[network].scores(t, attack))
    recorded = cache(lambda network, t: recorder(found[network], t, sources))

    def chosen(network, attack, target, t) -> Scores:
        return only(scores_at(network, attack, t), target)

    @cache
    def measured(network, *at) -> pd.DataFrame:
        scores = {t: chosen(network, *at, t) for t in found[network].times}
        return compared.measure(scores, ORDINARY if found[network].ordinary else None)

    @cache
    def curve(network, attack, target) -> dict:
        return plain(against(measured(network, attack, target), found[network], attack))

    @cache
    def pictures(network, attack, target, t) -> dict[str, dict]:
        one = found[network]
        scores = {one.when(u): chosen(network, attack, target, u) for u in one.pair(t)}
        outputs = {one.when(u): confidences(one.signals(u), target) for u in one.pair(t)}
        return compared.beside(scores, attack) | {"confidence": plain(sure(outputs))}

    @cache
    def spikes(network, t, number) -> dict:
        one, (source, why) = found[network], recorded(network, t)
        if number < 0:
            return empty(unrecorded(one, t, why), height=110)
        return plain(raster(one, t, source, number))

    def draw(network, target, attack, t, sample) -> View:
        one = found[network]
        at = (network, attack, target)
        rows = measured(*at)
        reference = one.when(ORDINARY) if one.ordinary else None
        figures = {
            "curve": with_line(curve(*at), t),
            **pictures(*at, t),
            "raster": spikes(network, t, sample),
        }
        table = compared.numbers(rows.rename(index=one.when), one.when(t), reference=reference)
        words = note(one, rows, t, chosen(*at, t).info["flags"])
        return View(sentence(one, attack, rows, t), figures, table, words)

    def samples(network, t) -> tuple[tuple[str, int], ...]:
        return numbered(found[network].outputs[t], recorded(network, t)[0])

    first = next(iter(found))
    controls = {
        "network": Pools("pool", found, first),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "t": steps("steps t", list(found[first].outputs), found[first].middle),
        "sample": dropdown("spikes of", UNRECORDED, -1),
    }
    follow = {
        "target": {"options": lambda network: found[network].any.targets},
        "attack": {"options": lambda network: worded(found[network].any.attacks())},
        "t": {
            "options": lambda network: list(found[network].outputs),
            "value": lambda network, t: t if t in found[network].outputs else found[network].middle,
        },
        "sample": {
            "options": samples,
            "disabled": lambda network, t: samples(network, t) == UNRECORDED,
        },
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["curve", "histogram"], ["roc"], ["confidence"], ["raster"]],
        follow=follow,
        pools=found,
        heights={"curve": 230, "histogram": 230, "roc": 285, "confidence": 320, "raster": 440},
        clicks={"curve": "t"},
    )


def sentence(one: Network, attack: str, rows: pd.DataFrame, t: int) -> str:
    """ "After 2 of 4 steps RMIA finds 12.0 % of members at 10 % false alarms (95 %: 10.1-14.0), n0
    = 898; after all 4: ..."
    """
    words = [
        f"{one.when(u)}: {compared.told(rows, u)}"
        for u in (max(one.outputs), ORDINARY)
        if u != t and u in one.times
    ]
    text = "; ".join([f"{one.when(t)} {compared.told(rows, t, attack)}", *words])
    return text[:1].upper() + text[1:]


def note(one: Network, rows: pd.DataFrame, t: int, flags: Sequence[str]) -> str:
    """What the numbers rest on and what they do not say."""
    apart = abs(rows["test_acc"].get(ORDINARY, rows.loc[t, "test_acc"]) - rows.loc[t, "test_acc"])
    return remarks(
        {
            compared.sizes(rows): True,
            KINDS[one.per_step][1]: True,
            "no ordinary network with the same members was queried in this way": not one.ordinary,
            f"test accuracy is {100 * apart:.1f} points from the ordinary network's: unequal models"
            " compare unfairly": apart > 0.01,
            "tied: share of scores equal to another's; few steps allow few outputs, which hides"
            " without protecting": compared.tied(rows),
            compared.ORACLE: True,
        },
        flags,
    )


def against(rows: pd.DataFrame, one: Network, attack: str) -> go.Figure:
    """AUC against t over the level of the ordinary network."""
    values = rows[["auc", "auc_low", "auc_high"]].set_axis(["value", "low", "high"], axis=1)
    line = values.drop(index=ORDINARY, errors="ignore").rename_axis("timesteps").reset_index()
    levels = None
    if one.ordinary:
        levels = values.loc[[ORDINARY]].assign(line=one.when(ORDINARY))
    name = attacks.in_words(attack)
    return plots.lines(
        line.assign(line=KINDS[one.per_step][0]),
        "timesteps",
        levels=levels,
        log=True,
        x_title="time steps t" if one.per_step else "time steps T",
        y_title=f"AUC of {name}",
        title=f"AUC of {name} against time steps",
        caption="bars and bands 95 %",
        height=440,
    )


def confidences(signals: Signals, target) -> tuple[np.ndarray, np.ndarray]:
    """p_y of members and of non-members, of one target or of all; the mean over queries where there
    are several.
    """
    models = slice(None) if target == ALL else [target]
    audited = ~signals.population
    value = np.exp(signals.log_p[models]).mean(1)[:, audited]
    member = signals.member[models][:, audited]
    return value[member], value[~member]


def sure(outputs: dict[str, tuple[np.ndarray, np.ndarray]]) -> go.Figure:
    """`plots.confidences` with short headings."""
    figure = plots.confidences(outputs).update_layout(
        title_text="Confidence in the right class: members, non-members"
    )
    return figure.for_each_annotation(
        lambda heading: heading.update(text=heading.text.split("<br>")[0])
    )


def raster(one: Network, t: int, source: Source, number: int) -> go.Figure:
    """The layer that `source` recorded while it looked at the image of this number, what comes
    after t greyed out, and how sure the network is then; the mean over queries if several.
    """
    own = one.outputs[t]
    recording = source.raster
    whose = source.rows[0]
    model = own.rows.index(whose)
    column = int(own.audited[own.column(number)])
    at = int(np.flatnonzero(source.samples[recording["samples"]] == number)[0])
    spk = recording["spikes"][at]
    theta = recording["thresholds"]
    figure = plots.raster(
        spk,
        recording["membranes"][at],
        float(theta[0]) if np.ptp(theta) == 0 else theta,
        image=None if own.images is None else own.images[column],
    )
    for row, name in ((1, "neurons"), (2, "membrane")):
        place = {"row": row, "col": 1}
        figure.update_yaxes(title_text=name, **place)
        now = (t if one.per_step else len(spk)) + 0.5
        if now < len(spk):
            grey = {"fillcolor": GREY, "opacity": 0.22, "line_width": 0}
            figure.add_vrect(now, len(spk) + 0.5, **grey, **place)
        figure.add_vline(now, line={"color": GREY, "width": 2, "dash": "dot"}, **place)
    side = "a member" if own.signals.member[model, column] else "not a member"
    sure = float(expit(one.signals(t).margin[model, :, column]).mean())
    text = (
        f"Sample {number} ({own.class_of(column)}), {side} of model {whose}: confidence {sure:.3f}"
        f" {one.when(t)}; {recording['site'][0]}: {spk.shape[1]} of"
        f" {int(recording['size'][0]):,} neurons, {(~spk.any(0)).sum()} of them silent"
    )
    return figure.update_layout(title={"text": text, "subtitle": {"text": ""}})


def unrecorded(one: Network, t: int, why: str) -> str:
    """Why there is no raster, and which query makes one."""
    own = one.outputs[t]
    if own.recipe.get("model_args", {}).get("encode") == "rate":
        return RANDOM
    call = query_call(own, per_step="instant" if one.per_step == "instant" else True)
    return f"The spikes recorded cannot be read: {why}" if why else QUERY.format(call)


def numbered(own: Source, source: Source | None) -> tuple[tuple[str, int], ...]:
    """Numbers of the recorded images that the network's own outputs hold too."""
    recorded = [] if source is None else source.samples[source.raster["samples"]].tolist()
    both = [number for number in recorded if number in own.numbers]
    names = [own.class_of(own.audited[own.column(number)]) for number in both]
    options = [(f"sample {n} ({name})", n) for n, name in zip(both, names, strict=True)]
    return tuple(options) or UNRECORDED
