"""Latency: what an attacker learns from a spiking network after t of its T time steps, or from networks of different T."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, lru_cache

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from scipy.special import expit

from mia_nb import plots
from mia_nb.plots.style import GREY, finish
from mia_nb.types import Scores, Signals
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import Explorer, View, dropdown, message, steps
from mia_nb.widgets.figure import plain
from mia_nb.widgets.networks import ORDINARY, Network, networks, recorder
from mia_nb.widgets.stored import Source, only

TITLE = "Latency"
NOTHING = "no spiking network is stored that was asked at several time steps; make some with: mia-nb run all --preset demo"
ASK = "No spikes of this network are recorded; asking it step by step records some: {}"
RANDOM = "Spikes of this network cannot be recorded: it encodes an image as random spikes, others whenever it is asked"
UNREADABLE = "The spikes recorded cannot be read: {}"
UNRECORDED = (("nothing recorded", -1),)
CONFIDENCE = "Confidence in the right class: members, non-members"
ALL = "all"
KEPT = 8  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
AHEAD = 8  # of so many time steps all pictures are drawn at once, so that the slider never waits
HEIGHTS = {"curve": 290, "histogram": 270, "roc": 420, "confidence": 320, "raster": 440}
LEGENDS = {
    "curve": -0.45,
    "confidence": -0.6,
    "raster": -0.22,
}  # far enough below that the axis keeps its title


def latency(sources: Sequence[Source]) -> Explorer:
    """What one answer after t time steps gives away, beside the ordinary network that the spiking one came from.

    Networks: every spiking pool that was asked step by step (query(..., per_step=True); t: the readout of the first t steps,
    or step t alone), and every set of spiking pools with the same members and recipe that differ in T (t: their T). The
    ordinary network has the same members and was asked in the same way, input dropout included; a parent comes before any
    other of the same architecture. Intervals: `metrics.intervals`; the difference of AUC is paired, from the same draws of
    samples and pairs of targets. Caveats: networks that differ in accuracy compare unfairly; an attacker who is shown the
    answers to all steps has more than one answer.
    """
    found = networks(sources)
    if not found:
        return message(TITLE, NOTHING)
    scores_at = lru_cache(KEPT)(lambda network, attack, t: found[network].scores(t, attack))
    recorded = cache(lambda network, t: recorder(found[network], t, sources))
    layers = cache(
        lambda network, t, n: _high(
            "raster", raster(found[network].answers[t], recorded(network, t)[0], n)
        )
    )
    reference = {name: ORDINARY if one.ordinary else None for name, one in found.items()}
    measured = cache(
        lambda *at: compared.measure(
            {t: chosen(*at, t) for t in found[at[0]].times}, reference[at[0]]
        )
    )
    curve = cache(lambda *at: _high("curve", against(measured(*at), found[at[0]], at[1])))
    pictures = cache(
        lambda *at, t: beside(
            found[at[0]], *at[1:], {u: chosen(*at, u) for u in found[at[0]].pair(t)}
        )
    )

    def chosen(network, attack, target, t) -> Scores:
        return only(scores_at(network, attack, t), None if target == ALL else target)

    def draw(network, target, attack, t, sample) -> View:
        one, at, (source, why) = found[network], (network, attack, target), recorded(network, t)
        rows = measured(*at)
        for u in one.answers if len(one.answers) <= AHEAD else ():
            pictures(*at, t=u)
        layer = (
            _unrecorded(one, t, why)
            if sample < 0
            else seen(layers(network, t, sample), one, source, t, sample)
        )
        figures = {"curve": _marked(curve(*at), t), **pictures(*at, t=t), "raster": layer}
        words = note(one, rows, t, chosen(*at, t).info["flags"])
        names = {u: one.when(u) for u in one.times}
        table = compared.numbers(rows, names, t, reference=reference[network], word="ordinary")
        return View(sentence(one, attack, rows, t), figures, table, words)

    def adjust(values) -> dict:
        one = found[values["network"]]
        names, targets = one.any.attacks(), range(len(one.any.signals.margin))
        t = values["t"] if values["t"] in one.answers else _middle(one)
        samples = _samples(one.answers[t], recorded(values["network"], t)[0])
        numbers = [number for _, number in samples]
        return {
            "target": {"options": [ALL, *targets], "value": values["target"] if values["target"] in targets else ALL},
            "attack": {"options": names, "value": values["attack"] if values["attack"] in names else names[0]},
            "t": {"options": list(one.answers), "value": t},
            "sample": {
                "options": samples, "disabled": samples == UNRECORDED,
                "value": values["sample"] if values["sample"] in numbers else numbers[0],
            },
        }  # fmt: skip

    first = next(iter(found))
    controls = {
        "network": dropdown("network", list(found), first),
        "target": dropdown("target", [ALL], ALL),
        "attack": dropdown("attack"),
        "t": steps("steps t", list(found[first].answers), _middle(found[first])),
        "sample": dropdown("spikes of", UNRECORDED, -1),
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[[name] for name in HEIGHTS],
        adjust=adjust,
        clicks={"curve": "t"},
    )


def _middle(one: Network) -> int:
    return sorted(one.answers)[(len(one.answers) - 1) // 2]


def beside(one: Network, attack: str, target, scores: dict[int, Scores]) -> dict[str, dict]:
    """Histogram, ROC and confidences at the first t of the scores; ROC and confidences also of the others."""
    names = {t: f"{attack} {one.when(t)}" if t != ORDINARY else one.when(t) for t in scores}
    answers = {one.when(t): confidences(one.signals(t), target) for t in scores}
    figures = {
        "histogram": plots.histogram(next(iter(scores.values()))),
        "confidence": sure(answers),
    }
    words = f"ROC of {attack}: " + " beside the ".join(map(one.when, scores))
    figures["roc"] = plots.roc_pair({names[t]: scores[t] for t in scores}).update_layout(
        title_text=words
    )
    return {name: _high(name, figure) for name, figure in figures.items()}


def sentence(one: Network, attack: str, rows: pd.DataFrame, t: int) -> str:
    """ "After 2 of 4 steps rmia finds 12.0 % of members at 10 % false alarms (95 %: 10.1-14.0), n0 = 898; after all 4: ..." """
    last = max(one.answers)
    words = [f"{one.when(t)} {compared.told(rows, t, attack)}"]
    if t != last:
        words.append(f"{one.when(last)}: {compared.told(rows, last)}")
    words += [f"{one.when(ORDINARY)}: {compared.told(rows, ORDINARY)}"] if one.ordinary else []
    return compared.sentence(*words)


def note(one: Network, rows: pd.DataFrame, t: int, flags: Sequence[str]) -> str:
    """What the numbers rest on and what they do not say."""
    kinds = {
        "cumulative": "an attacker who is given one answer, at t; who sees those to every step has more",
        "instant": "an attacker who is given the output of step t alone",
        "": "each T is a network of its own, with the same members",
    }
    words = [compared.sizes(rows), kinds[one.per_step]]
    if one.ordinary is None:
        words.append("no ordinary network with the same members was asked in this way")
    elif (apart := abs(rows.loc[t, "test_acc"] - rows.loc[ORDINARY, "test_acc"])) > 0.01:
        words.append(
            f"test accuracy is {100 * apart:.1f} points from the ordinary network's: unequal models compare unfairly"
        )
    if compared.tied(rows):
        words.append(
            "tied: share of scores equal to another's; few steps allow few answers, which hides without protecting"
        )
    return "; ".join([*words, "thresholds set with hindsight (oracle)", *flags])


def against(rows: pd.DataFrame, one: Network, attack: str) -> go.Figure:
    """AUC against t over the level of the ordinary network."""
    values = rows[["auc", "auc_low", "auc_high"]].set_axis(["value", "low", "high"], axis=1)
    line = values.drop(index=ORDINARY, errors="ignore").rename_axis("timesteps").reset_index()
    kinds = {"cumulative": "after t steps", "instant": "step t alone", "": "networks of T steps"}
    level = {one.when(ORDINARY): tuple(values.loc[ORDINARY])} if one.ordinary else None
    figure = plots.against_timesteps(
        line.assign(line=kinds[one.per_step]), reference=level, y_title=f"AUC of {attack}"
    )
    return figure.update_xaxes(title_text="time steps T" if not one.per_step else "time steps t")


def confidences(signals: Signals, target) -> tuple[np.ndarray, np.ndarray]:
    """p_y of members and of non-members, of one target or of all; the mean over queries where there are several."""
    models = slice(None) if target == ALL else [target]
    audited = ~signals.population
    value, member = (
        np.exp(signals.log_p[models]).mean(1)[:, audited],
        signals.member[models][:, audited],
    )
    return value[member], value[~member]


def sure(answers: dict[str, tuple[np.ndarray, np.ndarray]]) -> go.Figure:
    """`plots.confidences` with short headings."""
    figure = plots.confidences(answers).update_layout(title_text=CONFIDENCE)
    return figure.for_each_annotation(
        lambda heading: heading.update(text=heading.text.split("<br>")[0])
    )


def located(own: Source, source: Source, number: int) -> tuple[int, int]:
    """(model, column) in a source's own answers of the model that another recorded, and of the image of this number."""
    return own.rows.index(source.rows[0]), int(own.audited[own.column(number)])


def raster(own: Source, source: Source, number: int) -> go.Figure:
    """The layer that `source` recorded while it looked at the image of this number."""
    kept, (model, column) = source.raster, located(own, source, number)
    at, thresholds = (
        int(np.flatnonzero(source.samples[kept["samples"]] == number)[0]),
        kept["thresholds"],
    )
    label = own.classes[int(own.signals.labels[column])]
    side = "a member" if own.signals.member[model, column] else "not a member"
    name = f"Sample {number} ({label}), {side} of model {source.rows[0]}"
    theta = float(thresholds[0]) if np.ptp(thresholds) == 0 else thresholds
    image = None if own.images is None else own.images[column]
    spk = kept["spikes"][at]
    figure = plots.raster(spk, kept["membranes"][at], theta, image=image, name=name)
    layer = f"{kept['site'][0]}: {spk.shape[1]} of {int(kept['size'][0]):,} neurons, {(~spk.any(0)).sum()} of them silent"
    figure.update_yaxes(title_text="neurons", row=1, col=1).update_yaxes(
        title_text="membrane", row=2, col=1
    )
    return figure.update_layout(title={"text": name, "subtitle": {"text": layer}})


def seen(figure: dict, one: Network, source: Source, t: int, number: int) -> dict:
    """The raster with what comes after t greyed out, and how sure the network is then; the mean over queries if several."""
    layout, last = figure["layout"], source.raster["spikes"].shape[1]
    step, (model, column) = t if one.per_step else last, located(one.answers[t], source, number)
    confidence = float(expit(one.signals(t).margin[model, :, column]).mean())
    name, layer = layout["title"]["text"], layout["title"]["subtitle"]["text"]
    words = f"{name}: confidence {confidence:.3f} {one.when(t)}<br>{layer}"
    title = layout["title"] | {"text": words, "subtitle": {"text": ""}}
    shapes = list(layout.get("shapes", []))
    for x, y in (("x", "y domain"), ("x2", "y2 domain")):
        place = {"xref": x, "yref": y, "y0": 0, "y1": 1, "x0": step + 0.5}
        line = {
            "type": "line",
            "x1": step + 0.5,
            "line": {"color": GREY, "width": 2, "dash": "dot"},
        }
        later = {
            "type": "rect",
            "x1": last + 0.5,
            "fillcolor": GREY,
            "opacity": 0.22,
            "line": {"width": 0},
        }
        shapes += [later | place, line | place] if step < last else [line | place]
    return figure | {"layout": layout | {"title": title, "shapes": shapes}}


def _unrecorded(one: Network, t: int, why: str) -> dict:
    """In place of the raster: why there is none, and which question makes one."""
    own = one.answers[t]
    random = own.recipe.get("model_args", {}).get("encode") == "rate"
    words = (
        RANDOM
        if random
        else UNREADABLE.format(why)
        if why
        else ASK.format(asking(own, one.per_step))
    )
    figure = finish(go.Figure(), words, height=110)
    return plain(figure.update_xaxes(visible=False).update_yaxes(visible=False))


def asking(own: Source, per_step: str) -> str:
    """The call that records spikes of this network, on images and of a model that it answered about."""
    pool = f"training.load_pool({own.info.get('pool', 'KEY')[:12]!r})"
    pool += f".at({own.info['epoch']})" if own.info.get("epoch") else ""
    models = f"models={own.rows}, " if 0 not in own.rows else ""
    limit = f"limit={own.info['limit']}, " if own.info.get("limit") else ""
    return f"query.query({pool}, images, {models}{limit}per_step={'True' if per_step != 'instant' else repr(per_step)})"


def _samples(own: Source, source: Source | None) -> tuple[tuple[str, int], ...]:
    """Numbers of the recorded images that the network's own answers hold too."""
    if source is None:
        return UNRECORDED
    both = [
        int(number) for number in source.samples[source.raster["samples"]] if number in own.numbers
    ]
    labels = own.signals.labels[own.audited]
    return (
        tuple((f"sample {n} ({own.classes[int(labels[own.column(n)])]})", n) for n in both)
        or UNRECORDED
    )


def _marked(figure: dict, t: int) -> dict:
    """A line at t."""
    line = {
        "type": "line",
        "x0": t,
        "x1": t,
        "y0": 0,
        "y1": 1,
        "yref": "y domain",
        "line": {"color": GREY},
    }
    return figure | {
        "layout": figure["layout"] | {"shapes": [*figure["layout"].get("shapes", []), line]}
    }


def _high(name: str, figure: go.Figure) -> dict:
    """As JSON, of a height that leaves room for the others on a screen, its legend in its place."""
    figure.update_layout(
        height=HEIGHTS[name], title_text=" ".join((figure.layout.title.text or "").split("<br>"))
    )
    return plain(figure.update_layout(legend_y=LEGENDS[name]) if name in LEGENDS else figure)
