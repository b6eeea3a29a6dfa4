"""Noise is not privacy: what one noisy output hides, the average of many shows again."""

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.queries import UNAVERAGED, VarianceSplit
from mia_nb.plots import settings
from mia_nb.plots.style import GREY
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import (
    END,
    Explorer,
    View,
    count,
    dropdown,
    message,
    plain,
    remarks,
    steps,
    tick,
    with_title,
    worded,
)
from mia_nb.widgets.networks import alike, doublings, query_call, query_count, query_kind, without
from mia_nb.widgets.pools import Pools
from mia_nb.widgets.stored import ALL, Source, label, list_of_sources, only, unique

TITLE = "Noise is not privacy"
NOTHING = (
    "no model with noise was queried twice yet; make some with:"
    " mia-nb run 09_neural_de --preset tour"
)
LEFT = "noise that is fresh in every output averages away; what it leaves is measured, not promised"
FORMULA = (
    "closed form: Gaussian margins, d' = d / sqrt(v + s2 / R), fitted at the largest R, so that it"
    " agrees there",
    "attacks other than loss follow it more loosely",
)
# of info: what pools of one group share
SAME = ("dataset", "epoch", "output", "input_dropout", "temperature", "augment")
RANKED = "sample 1: the margins of models trained on it exceed those of others most"
# targets x outputs x samples up to which every number of outputs is scored at once
AHEAD = 1_000_000
LOOKS = 256  # pictures and numbers at once
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples
CLOSED = {
    "type": "scatter",
    "mode": "lines",
    "name": "closed form",
    "legendgroup": "closed form",
    "line": {"color": GREY, "dash": "dot", "width": 2},
    "hovertemplate": "%{y:.2%} of members at %{x:.3%} false positives",
}
STAR = {
    "type": "scatter",
    "mode": "markers",
    "marker": {"symbol": "star", "size": 15, "color": GREY, "line": {"width": 1, "color": "white"}},
    "showlegend": False,
    "hoverinfo": "skip",
}


def noise(sources: Sequence[Source]) -> Explorer:
    """Networks whose outputs are random: the attack after one output, after R averaged ones, and
    with the noise off.

    Parameters:
        sources: what to find the pools in, as `sources` gives them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` and `html()` export it. Without sources a message that says what to run.

    Pools that differ in the noise per step k alone share an entry, sigma chooses among them. One
    sample: its outputs and their running mean, from a model that was trained on it and from one
    that was not; samples are ranked by how far their two worlds lie apart. The attack averages the
    margins of the first R outputs, of target and references alike; attacks that read how outputs
    differ (lira_joint) are left out. Noise off: the same models queried once without their noise.
    Closed form: margins are Gaussian, d' (R) = d / sqrt(v + s2 / R) with s2 the variance between
    outputs and v that between models (`metrics.variance_split`), d fitted at the largest R, AUC =
    Phi(d' / sqrt 2), ROC Phi(Phi^-1(FPR) + d'). Intervals are those of `metrics.intervals` with 200
    resamples. Where targets x outputs x samples exceed a million it starts with one target, as
    scoring all of them takes seconds.

    Caveat: noise that is fresh in every output averages away; what is left after it may be as
        little or as much as without it.
    """
    sources = list_of_sources(sources)
    groups = grouped(sources)
    if not groups:
        return message(TITLE, NOTHING)

    def source_of(pool, sigma) -> Source:
        return groups[pool][sigma].source

    def draw(pool, sigma, target, attack, outputs, sample, closed) -> View:
        level = groups[pool][sigma]
        at = (attack, target)
        table = averaged(level, *at, outputs)
        quiet = quietly(level, *at)
        now = table.loc[outputs]
        figures = {
            "sample": settling(level, target, sample, outputs, closed),
            "curve": curve(level, *at, outputs, closed),
            "histogram": histograms(level, *at, outputs),
            "roc": roc(level, *at, outputs, closed),
        }
        sentence = f"{sigma}: one output gives AUC {auc(table.loc[1])}"
        sentence += f", {outputs} outputs {auc(now)}" if outputs > 1 else ""
        sentence += f", the model without its noise {auc(quiet)}" if quiet is not None else ""
        who = f"{now['targets']:.0f} targets" if target == ALL else f"target {target}"
        sentence += f" ({attacks.in_words(attack)}, {who}, n0 = {now['n0']:,.0f})"
        return View(sentence, figures, numbers(level, *at, outputs), note(level, *at, closed))

    def start(pool, sigma, target) -> int | str:
        """To begin with all targets, where their scores take no seconds."""
        source = source_of(pool, sigma)
        if target is None:
            return ALL if source.signals.margin.size <= AHEAD else 0
        return target if target in source.targets else ALL

    controls = {
        "pool": Pools("pool", groups, next(iter(groups))),
        "sigma": steps("sigma", [""], ""),
        "target": dropdown("target"),
        "attack": dropdown("attack"),
        "outputs": count("outputs R"),
        "sample": count("sample"),
        "closed": tick("closed form"),
    }
    follow = {
        "sigma": {
            "options": lambda pool: [(short(words), words) for words in groups[pool]],
            "disabled": lambda pool: len(groups[pool]) == 1,
        },
        "target": {"options": lambda pool, sigma: source_of(pool, sigma).targets, "value": start},
        "attack": {"options": lambda pool, sigma: worded(averaging(source_of(pool, sigma)))},
        "outputs": {"max": lambda pool, sigma: groups[pool][sigma].most, "value": lambda: END},
        "sample": {"max": lambda pool, sigma: len(source_of(pool, sigma).audited)},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        rows=[["sample", "curve"], ["roc"], ["histogram"]],
        follow=follow,
        pools=groups,
        heights={"sample": 230, "curve": 230, "roc": 285, "histogram": 230},
    )


class Level(NamedTuple):
    """One pool at one strength of its noise."""

    source: Source
    quiet: Source | None  # its models with their noise off

    @property
    def most(self) -> int:
        return self.source.signals.margin.shape[1]


@lru_cache(KEPT)
def scored(level: Level, attack, target, outputs) -> Scores:
    """Of a target, or of all, with their first outputs, the references too."""
    if target == ALL and outputs == level.most:
        return level.source.scores(attack)
    return attacks.score(
        attack,
        level.source.signals.select(queries=slice(0, outputs)),
        targets=None if target == ALL else target,
    )


@lru_cache(LOOKS)
def measured(level: Level, *at) -> pd.Series:
    """AUC with its 95 % interval, and on how much it rests."""
    return compared.measure({"": scored(level, *at)}, fpr=()).loc[""]


def noiseless(level: Level, attack, target) -> dict[str, Scores]:
    """Of the same models with their noise off; {} where that is not stored."""
    return {"noise off": only(level.quiet.scores(attack), target)} if level.quiet else {}


@lru_cache(LOOKS)
def quietly(level: Level, *at) -> pd.Series | None:
    scores = noiseless(level, *at)
    return compared.measure(scores, fpr=()).loc["noise off"] if scores else None


def averaged(level: Level, attack, target, *counts) -> pd.DataFrame:
    """Index R: AUC and sizes after R outputs, every R where that is quick, else doublings, and
    these.
    """
    margin = level.source.signals.margin
    quick = margin.size <= AHEAD * (1 if target == ALL else len(margin))
    usual = range(1, level.most + 1) if quick else doublings(level.most)
    return pd.DataFrame(
        {r: measured(level, attack, target, r) for r in sorted({*usual, *counts})}
    ).T


@lru_cache(LOOKS)
def variances(level: Level) -> VarianceSplit | str:
    """`metrics.variance_split`, or why there is none."""
    try:
        return metrics.variance_split(level.source.signals)
    except ValueError as error:
        return str(error)


@lru_cache(LOOKS)
def closed_form(level: Level, attack, target) -> pd.DataFrame | None:
    """Closed form for every R and inf: separation d' and AUC; None where the variances cannot
    be told apart.
    """
    if isinstance(variances(level), str):
        return None
    return separation(
        measured(level, attack, target, level.most)["auc"],
        variances(level),
        [*range(1, level.most + 1), np.inf],
    )


@lru_cache(LOOKS)
def histograms(level: Level, attack, target, outputs) -> dict:
    """Scores after one output and after several."""
    counts = {f"after {outputs} outputs" if r > 1 else "after one output": r for r in (1, outputs)}
    share = {r: measured(level, attack, target, r)["auc"] for r in counts.values()}
    words = f"A member outscores a non-member in {share[1]:.1%} of cases (one output)"
    words += f", {share[outputs]:.1%} ({outputs})" if outputs > 1 else ""
    return compared.histograms(
        {name: scored(level, attack, target, r) for name, r in counts.items()}, words
    )


@lru_cache(LOOKS)
def rocs(level: Level, attack, target, outputs) -> dict:
    """ROCs after one output, with the noise off, and after several outputs."""
    drawn = {"one output": scored(level, attack, target, 1)} | noiseless(level, attack, target)
    drawn |= {f"{outputs} outputs": scored(level, attack, target, outputs)} if outputs > 1 else {}
    row = measured(level, attack, target, outputs)
    words = f"{outputs} outputs"
    words = f"ROC after {words if outputs > 1 else 'one output'}: AUC {auc(row)}"
    return with_title(plain(plots.roc_pair(drawn)), f"{words}, n0 = {row['n0']:,.0f}")


def roc(level: Level, attack, target, outputs, closed) -> dict:
    """Measured curves, and the closed form's."""
    figure = rocs(level, attack, target, outputs)
    theory = closed_form(level, attack, target)
    if theory is None or not closed:
        return figure
    fpr = np.geomspace(1e-5, 1, 200)
    tpr = ndtr(ndtri(fpr) + theory.loc[outputs, "d"])
    line = CLOSED | {"x": fpr.round(7).tolist(), "y": tpr.round(6).tolist()}
    return figure | {
        "data": [
            *figure["data"],
            *(
                line | plane
                for plane in [
                    {"xaxis": "x", "yaxis": "y"},
                    {"xaxis": "x2", "yaxis": "y2", "showlegend": False},
                ]
            ),
        ]
    }


@lru_cache(LOOKS)
def against(level: Level, attack, target, closed) -> dict:
    """AUC against the outputs that are averaged."""
    off = quietly(level, attack, target)
    theory = closed_form(level, attack, target) if closed else None
    measures = {"auc": "value", "auc_low": "low", "auc_high": "high"}
    table = averaged(level, attack, target).rename(columns=measures)
    table = table.rename_axis("R").reset_index().assign(line="queried R times")
    if theory is not None:
        expected = theory.rename(columns=measures).reset_index().assign(line="closed form")
        table = pd.concat([table, expected.reindex(columns=table.columns)])
    levels = None
    if off is not None:
        levels = off.rename(measures).to_frame().T.assign(line="noise off")
    figure = plots.lines(
        table.astype({"value": float, "low": float, "high": float}),
        "R",
        levels=levels,
        log=True,
        x_title="outputs R that are averaged",
        y_title="AUC",
        title="AUC against the outputs that are averaged",
        caption="bars 95 %; ∞: the limit of the closed form",
        height=370,
    )
    return plain(figure)


def curve(level: Level, attack, target, outputs, closed) -> dict:
    """AUC against the outputs, a star at what is chosen."""
    figure = against(level, attack, target, closed)
    auc = measured(level, attack, target, outputs)["auc"]
    return figure | {"data": [*figure["data"], (STAR | {"x": [outputs], "y": [auc]})]}


@lru_cache(LOOKS)
def order(level: Level) -> np.ndarray:
    """Audited columns, first those whose margin is highest in models trained on them against
    the others.
    """
    signals, audited = level.source.signals, level.source.audited
    mean = signals.margin.mean(1)[:, audited]
    member = signals.member[:, audited]
    gap = compared.mean_of(mean, member) - compared.mean_of(mean, ~member)
    return audited[np.argsort(-np.nan_to_num(gap, nan=-np.inf), kind="stable")]


@lru_cache(LOOKS)
def settling(level: Level, target, rank, outputs, closed) -> dict:
    """The outputs on one sample of a model that saw it and of one that did not."""
    source = level.source
    column = order(level)[rank - 1]
    own = source.signals.margin[:, :, column]
    member = source.signals.member
    first = None if target == ALL else target
    models = two_worlds(member[:, column], member[:, source.audited], first)
    off = level.quiet and level.quiet.signals.margin[:, :, column].mean(1)
    name = f"Sample {source.samples[column]} ({source.class_of(column)})"
    return plain(
        settings.settling(
            {side: own[model] for side, model in models.items()},
            averaged=outputs,
            quiet=off if off is None else {side: float(off[m]) for side, m in models.items()},
            spread={side: own[m].std(ddof=1) for side, m in models.items()} if closed else None,
            title=f"{name}, rank {rank} of {len(source.audited):,}",
        )
    )


def numbers(level: Level, attack, target, outputs) -> pd.DataFrame:
    """Measured and closed-form separation of one output, of R, of all, and with the noise
    off.
    """
    theory = closed_form(level, attack, target)
    off = quietly(level, attack, target)
    rows = {r: measured(level, attack, target, r) for r in (1, outputs, level.most)}
    table = pd.DataFrame(rows | ({} if off is None else {np.inf: off})).T
    d = np.sqrt(2) * ndtri(table["auc"].to_numpy(float))
    known = np.full(len(table), np.nan) if theory is None else theory.loc[table.index, "d"]
    columns = {
        "outputs": ["noise off" if r == np.inf else f"{r:g}" for r in table.index],
        "AUC": [auc(row) for _, row in table.iterrows()],
        "d' measured": [f"{one:.3f}" for one in d],
        "d' closed form": [compared.shown(one, ".3f") for one in known],
    }
    return pd.DataFrame(
        columns | {name: [f"{n:,.0f}" for n in table[name]] for name in ("targets", "n1", "n0")}
    )


def note(level: Level, attack, target, closed) -> str:
    """What the numbers are, the two variances, how far the closed form may be trusted."""
    split = variances(level)
    call = query_call(level.source, noise=False)
    if isinstance(split, str):
        told = [f"no closed form: {split}"]
    else:
        names = ("between_queries", "between_models")
        each = [[getattr(split, name + end) for end in compared.ENDS] for name in names]
        s2, v = (compared.ends(*three, ".3g") for three in each)
        words = f"variance of the margin between outputs s2 = {s2}, between models v = {v}"
        told = [words, *FORMULA * closed]
    return remarks(
        {
            "95 % intervals": True,
            LEFT: True,
            f"outputs with the noise off are not stored: {call}": level.quiet is None,
            RANKED: True,
        },
        [*scored(level, attack, target, 1).info["flags"], *told],
    )


def grouped(sources: Sequence[Source]) -> dict[str, dict[str, Level]]:
    """{pools that differ in the noise alone: {sigma in words: the pool queried most often}}, by
    rising sigma.
    """
    groups: dict[str, dict[str, Source]] = {}
    for source in sources:
        if query_kind(source) == "noise" and query_count(source) > 1:
            levels = groups.setdefault(_but_its_noise(source), {})
            words = strength(source)
            levels[words] = max(levels.get(words, source), source, key=query_count)
    entries = []
    for levels in groups.values():
        rising = sorted(levels.items(), key=lambda item: _flow(item[1]).get("sigma", 0.0))
        pairs = {words: Level(one, silent(one, sources)) for words, one in rising}
        entries.append((title(rising[0][1], len(rising)), pairs))
    return unique(entries)


def _flow(source: Source) -> dict:
    return source.info.get("flow") or {}


def _but_its_noise(source: Source) -> str:
    """How a pool was trained and queried, but for the strength of its noise."""
    recipe = source.recipe
    args = source.recipe.get("model_args", {})
    trained = without(recipe, "snapshots") | {"model_args": without(args, "k")}
    equation = without(_flow(source), "k", "sigma", "noise_sd")
    queried = {name: source.info.get(name) for name in SAME}
    known = [trained, equation, queried]
    return json.dumps(known if _flow(source) else [source.label], sort_keys=True, default=str)


def strength(source: Source) -> str:
    """How strong the noise is, in words."""
    words = "sigma = {sigma:.3g} (noise sd {noise_sd:.3g})"
    return words.format(**_flow(source)) if _flow(source) else "noise as built"


def short(words: str) -> str:
    """The strength for a slider: sigma alone."""
    return words.removeprefix("sigma = ").removeprefix("noise ").split(" (")[0]


def title(source: Source, levels: int) -> str:
    """The pools of a group in words."""
    info = source.info
    flow = _flow(source)
    name = source.label
    if source.folder is not None:
        replaced = f"{info.get('base')} with its last group replaced"
        family = (replaced if "base" in info else info["model"]) if flow else info["family"]
        changed = {"draws": "plain", "queries": 1, "family": family}
        name = label(info | changed | ({"pool": ""} if levels > 1 else {}), source.recipe)
    timed = flow.get("T") and flow.get("steps")
    return f"{name}, T = {flow['T']:g}, {flow['steps']} steps" if timed else name


def silent(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain outputs of the same models on the same samples, at the same epoch, with the
    noise switched off.
    """
    pool = source.info.get("pool")
    but = ("queries", "draws")
    own = (o for o in reversed(sources) if pool and o.info.get("pool") == pool)
    quiet = (o for o in own if o.info.get("noise") is False and query_kind(o) == "plain")
    return next((o for o in quiet if alike(o, but=but) == alike(source, but=but)), None)


def averaging(source: Source) -> list[str]:
    """Attacks that average the outputs, the headline first."""
    bound = {name: getattr(attacks.ATTACKS[name], "keywords", {}) for name in source.attacks()}
    return [name for name, options in bound.items() if options.get("combine") not in UNAVERAGED]


def auc(row: pd.Series) -> str:
    return compared.ends(row["auc"], row["auc_low"], row["auc_high"])


def separation(auc: float, split: VarianceSplit, counts) -> pd.DataFrame:
    """d' and AUC of Gaussian margins for each number of outputs, from the AUC of all
    `split.queries` outputs.

    d'(R) = sqrt 2 Phi^-1(AUC) spread(Q) / spread(R), spread(R)^2 = v + s2 / R; AUC(R) = Phi(d'(R) /
    sqrt 2). Index R.
    """
    whole = np.sqrt(2) * ndtri(auc) * split.spread(split.queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.array([whole / np.float64(split.spread(count)) for count in counts])
    return pd.DataFrame(
        {"d": d, "auc": ndtr(d / np.sqrt(2))}, index=pd.Index(counts, dtype=float, name="R")
    )


def two_worlds(member: np.ndarray, masks: np.ndarray, target: int | None) -> dict[bool, int]:
    """{trained on it: model}: the target, else the first model; against it its complement, else the
    first on the other side.
    """
    first = (int(np.argmax(member)) if member.any() else 0) if target is None else target
    others = np.flatnonzero(member != member[first])
    others = sorted(others.tolist(), key=lambda m: not (masks[m] != masks[first]).all())
    found = {bool(member[first]): first} | ({not member[first]: others[0]} if others else {})
    return dict(sorted(found.items(), reverse=True))
