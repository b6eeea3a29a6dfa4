"""Noise is not privacy: what one noisy output hides, the average of many shows again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.queries import UNAVERAGED, VarianceSplit
from mia_nb.plots.style import DASHES, GREY, LINES, translucent
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import (
    END,
    Explorer,
    View,
    count,
    dropdown,
    message,
    remarks,
    steps,
    tick,
)
from mia_nb.widgets.figure import plain, with_layout
from mia_nb.widgets.networks import alike, doublings, draws, query_call, query_count
from mia_nb.widgets.stored import ALL, Source, keep, label, only, unique

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
# targets x answers x samples up to which every number of answers is scored at once
AHEAD = 1_000_000
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples


def noise(sources: Sequence[Source]) -> Explorer:
    """Networks whose outputs are random: the attack after one output, after R averaged ones, and
    with the noise off.

    Pools that differ in the noise per step k alone share an entry, sigma chooses among them. One
    sample: its outputs and their running mean, from a model that was trained on it and from one
    that was not; samples are ranked by how far their two worlds lie apart. The attack averages the
    margins of the first R outputs, of target and references alike; attacks that read how outputs
    differ (lira_joint) are left out. Noise off: the same models queried once without their noise.

    closed form: margins are Gaussian, d' (R) = d / sqrt(v + s2 / R) with s2 the variance between
    answers and v that between models (`metrics.variance_split`), d fitted at the largest R, AUC =
    Phi(d' / sqrt 2), ROC Phi(Phi^-1(FPR) + d'). Intervals are those of `metrics.intervals` with 200
    draws. Nothing here says that a network withholds anything: noise that is fresh in every answer
    averages away, and what is left after it may be as little or as much as without it. Where
    targets x answers x samples exceed a million it starts with one target, as scoring all of them
    takes seconds.
    """
    groups = grouped(sources)
    if not groups:
        return message(TITLE, NOTHING)

    def source_of(pool, sigma) -> Source:
        return groups[pool][sigma].source

    def draw(pool, sigma, target, attack, answers, sample, closed) -> View:
        level, at = groups[pool][sigma], (attack, target)
        rows, off = level.rows(*at, answers), level.off(*at)
        now = rows.loc[answers]
        figures = {
            "sample": level.settling(target, sample, answers, closed),
            "curve": level.curve(*at, answers, closed),
            "histogram": level.histograms(*at, answers),
            "roc": level.roc(*at, answers, closed),
        }
        sentence = f"{sigma}: one output gives AUC {auc(rows.loc[1])}"
        sentence += f", {answers} outputs {auc(now)}" if answers > 1 else ""
        sentence += f", the model without its noise {auc(off)}" if off is not None else ""
        who = f"{now['targets']:.0f} targets" if target == ALL else f"target {target}"
        sentence += f" ({attack}, {who}, n0 = {now['n0']:,.0f})"
        return View(sentence, figures, level.numbers(*at, answers), level.note(*at, closed))

    def start(pool, sigma, target) -> int | str:
        """To begin with all targets, where their scores take no seconds."""
        source = source_of(pool, sigma)
        if target is None:
            return ALL if source.signals.margin.size <= AHEAD else 0
        return target if target in source.targets else ALL

    controls = {
        "pool": dropdown("pool", list(groups), next(iter(groups))),
        "sigma": steps("sigma", [""], ""),
        "target": dropdown("target"),
        "attack": dropdown("attack"),
        "answers": count("outputs R"),
        "sample": count("sample"),
        "closed": tick("closed form"),
    }
    follow = {
        "sigma": {
            "options": lambda pool: [(one.short, words) for words, one in groups[pool].items()],
            "disabled": lambda pool: len(groups[pool]) == 1,
        },
        "target": {"options": lambda pool, sigma: source_of(pool, sigma).targets, "value": start},
        "attack": {"options": lambda pool, sigma: averaging(source_of(pool, sigma))},
        "answers": {"max": lambda pool, sigma: groups[pool][sigma].most, "value": lambda: END},
        "sample": {"max": lambda pool, sigma: len(source_of(pool, sigma).audited)},
    }
    rows = [["sample"], ["curve"], ["histogram"], ["roc"]]
    return Explorer(TITLE, controls, draw, rows=rows, follow=follow)


class Level:
    """One pool at one strength of its noise: what the pictures show of it, each computed once."""

    def __init__(self, source: Source, quiet: Source | None):
        self.source, self.quiet = source, quiet
        keep(self, scores=KEPT, row=None, off=None, theory=None, histogram=None, histograms=None)
        keep(self, base=None, third=None, against=None, settling=None)

    @property
    def most(self) -> int:
        return self.source.signals.margin.shape[1]

    @property
    def short(self) -> str:
        """How strong the noise is, for a slider."""
        flow = self.source.info.get("flow")
        return f"{flow['sigma']:.3g}" if flow else "as built"

    def scores(self, attack, target, answers) -> Scores:
        """Of a target, or of all, with their first outputs, the references too."""
        if target == ALL and answers == self.most:
            return self.source.scores(attack)
        signals = self.source.signals.select(queries=slice(0, answers))
        return attacks.score(attack, signals, targets=None if target == ALL else target)

    def row(self, *at) -> pd.Series:
        return measured(self.scores(*at))

    def noiseless(self, attack, target) -> Scores | None:
        """Of the same models with their noise off; None where that is not stored."""
        return None if self.quiet is None else only(self.quiet.scores(attack), target)

    def off(self, *at) -> pd.Series | None:
        return None if self.quiet is None else measured(self.noiseless(*at))

    def counts(self, target) -> tuple[int, ...]:
        """Every number of outputs where that is quick, else doublings."""
        margin = self.source.signals.margin
        quick = margin.size <= AHEAD * (1 if target == ALL else len(margin))
        return tuple(range(1, self.most + 1) if quick else doublings(self.most))

    def rows(self, attack, target, *counts) -> pd.DataFrame:
        """Index R: AUC and sizes after R outputs, of these numbers too."""
        counts = sorted({*self.counts(target), *counts})
        rows = {count: self.row(attack, target, count) for count in counts}
        return pd.DataFrame.from_dict(rows, orient="index")

    @cached_property
    def split(self) -> VarianceSplit | str:
        """`metrics.variance_split`, or why there is none."""
        try:
            return metrics.variance_split(self.source.signals)
        except ValueError as error:
            return str(error)

    def theory(self, attack, target) -> pd.DataFrame | None:
        """Closed form for every R and inf: separation d' and AUC; None where the variances cannot
        be told apart.
        """
        if isinstance(self.split, str):
            return None
        auc = self.row(attack, target, self.most)["auc"]
        return separation(auc, self.split, [*range(1, self.most + 1), np.inf])

    def histogram(self, *at) -> tuple[dict, tuple[float, float]]:
        """The histogram after some outputs, and the ends of its bins."""
        figure = plots.histogram(self.scores(*at), bins=compared.BINS)
        return plain(figure), (float(figure.data[0].x[0]), float(figure.data[0].x[-1]))

    def histograms(self, attack, target, answers) -> dict:
        """Scores after one output and after several, on the axes that one and all outputs need."""
        one, several = (self.histogram(attack, target, end)[0] for end in (1, answers))
        edges = [self.histogram(attack, target, end)[1] for end in (1, self.most)]
        after = "after one output" if answers == 1 else f"after {answers} outputs"
        ends = (min(low for low, _ in edges), max(high for _, high in edges))
        both = [("after one output", one), (after, several)]
        figure = compared.histograms(both, ends)
        share = [self.row(attack, target, end)["auc"] for end in (1, answers)]
        words = f"A member outscores a non-member in {share[0]:.1%} of cases (one output)"
        words += f", {share[1]:.1%} ({answers})" if answers > 1 else ""
        return with_layout(figure, title=figure["layout"]["title"] | {"text": words})

    def base(self, attack, target) -> dict:
        """ROCs after one output, and with the noise off."""
        drawn = {"one output": self.scores(attack, target, 1)}
        drawn |= {} if self.quiet is None else {"noise off": self.noiseless(attack, target)}
        return plain(plots.roc_pair(drawn))

    def third(self, attack, target, answers) -> list[dict]:
        """A third curve beside those: drawn alone, in the next colour and dash."""
        name, colour = f"{answers} outputs", {"color": LINES[2], "dash": DASHES[2]}
        alone = plain(plots.roc_pair({name: self.scores(attack, target, answers)}))["data"]
        mine = [trace for trace in alone if trace.get("legendgroup") == name]
        return [
            trace
            | {"line": trace["line"] | colour}
            | ({"fillcolor": translucent(LINES[2], 0.18)} if "fill" in trace else {})
            for trace in mine
        ]

    def roc(self, attack, target, answers, closed) -> dict:
        """The base, the curve of several outputs, and the closed form's."""
        figure, row = self.base(attack, target), self.row(attack, target, answers)
        traces = self.third(attack, target, answers) if answers > 1 else []
        theory = self.theory(attack, target) if closed else None
        if theory is not None:
            fpr = np.geomspace(1e-5, 1, 200)
            tpr = ndtr(ndtri(fpr) + theory.loc[answers, "d"])
            line = {
                "type": "scatter",
                "mode": "lines",
                "name": "closed form",
                "legendgroup": "closed form",
                "x": fpr.round(7).tolist(),
                "y": tpr.round(6).tolist(),
                "line": {"color": GREY, "dash": "dot", "width": 2},
                "hovertemplate": "%{y:.2%} of members at %{x:.3%} false positives",
            }
            linear, logarithmic = {"xaxis": "x", "yaxis": "y"}, {"xaxis": "x2", "yaxis": "y2"}
            traces = [*traces, line | linear, line | logarithmic | {"showlegend": False}]
        words = "one output" if answers == 1 else f"{answers} outputs"
        words = f"ROC after {words}: AUC {auc(row)}, n0 = {row['n0']:,.0f}"
        figure = with_layout(figure, title=figure["layout"]["title"] | {"text": words})
        return figure | {"data": [*figure["data"], *traces]}

    def against(self, attack, target, closed) -> dict:
        off, theory = self.off(attack, target), self.theory(attack, target) if closed else None
        level = None if off is None else tuple(off[["auc", "auc_low", "auc_high"]])
        return plain(
            plots.auc_against_answers(self.rows(attack, target), quiet=level, closed=theory)
        )

    def curve(self, attack, target, answers, closed) -> dict:
        """AUC against the outputs, a star at what is chosen."""
        figure = self.against(attack, target, closed)
        star = {
            "type": "scatter",
            "mode": "markers",
            "x": [np.log2(answers)],
            "y": [self.row(attack, target, answers)["auc"]],
            "marker": {
                "symbol": "star",
                "size": 15,
                "color": GREY,
                "line": {"width": 1, "color": "white"},
            },
            "showlegend": False,
            "hoverinfo": "skip",
        }
        return figure | {"data": [*figure["data"], star]}

    @cached_property
    def order(self) -> np.ndarray:
        """Audited columns, first those whose margin is highest in models trained on them against
        the others.
        """
        mean = self.source.signals.margin.mean(1)[:, self.source.audited]
        member = self.source.signals.member[:, self.source.audited]
        with np.errstate(invalid="ignore"):
            inside, outside = ((mean * side).sum(0) / side.sum(0) for side in (member, ~member))
        gap = np.nan_to_num(inside - outside, nan=-np.inf)
        return self.source.audited[np.argsort(-gap, kind="stable")]

    def settling(self, target, rank, answers, closed) -> dict:
        """The outputs on one sample of a model that saw it and of one that did not."""
        source, column, levels = self.source, self.order[rank - 1], None
        own, member = source.signals.margin[:, :, column], source.signals.member
        models = two_worlds(
            member[:, column], member[:, source.audited], None if target == ALL else target
        )
        if self.quiet is not None:
            off = self.quiet.signals.margin[:, :, column].mean(1)
            levels = {side: float(off[model]) for side, model in models.items()}
        spread = {side: float(own[model].std(ddof=1)) for side, model in models.items()}
        name = f"Sample {source.samples[column]} ({source.class_of(column)})"
        return plain(
            plots.settling(
                {side: own[model] for side, model in models.items()},
                asked=answers,
                quiet=levels,
                spread=spread if closed else None,
                title=f"{name}, rank {rank} of {len(source.audited):,}",
            )
        )

    def numbers(self, attack, target, answers) -> pd.DataFrame:
        """Measured and closed-form separation of one output, of R, of all, and with the noise
        off.
        """
        theory, off, lines = self.theory(attack, target), self.off(attack, target), []
        counts = dict.fromkeys([1, answers, self.most])
        rows = {count: self.row(attack, target, count) for count in counts}
        for many, row in (rows | ({} if off is None else {np.inf: off})).items():
            lines.append(
                {
                    "outputs": "noise off" if many == np.inf else str(many),
                    "AUC": auc(row),
                    "d' measured": f"{np.sqrt(2) * ndtri(row['auc']):.3f}",
                    "d' closed form": "n/m" if theory is None else f"{theory.loc[many, 'd']:.3f}",
                    "targets": f"{row['targets']:.0f}",
                    "n1": f"{row['n1']:,.0f}",
                    "n0": f"{row['n0']:,.0f}",
                }
            )
        return pd.DataFrame(lines)

    def note(self, attack, target, closed) -> str:
        """What the numbers are, the two variances, how far the closed form may be trusted."""
        split, words = self.split, ""
        if not isinstance(split, str):
            answers = (split.between_queries, split.between_queries_low, split.between_queries_high)
            models = (split.between_models, split.between_models_low, split.between_models_high)
            words = f"variance of the margin between outputs s2 = {compared.ends(*answers, '.3g')}"
            words += f", between models v = {compared.ends(*models, '.3g')}"
        call = query_call(self.source, noise=False)
        texts = {
            "95 % intervals": True,
            LEFT: True,
            f"outputs with the noise off are not stored: {call}": self.quiet is None,
            RANKED: True,
        }
        flags = self.scores(attack, target, 1).info["flags"]
        told = [words, *(FORMULA if closed else [])] if words else [f"no closed form: {split}"]
        return remarks(texts, [*flags, *told])


def grouped(sources: Sequence[Source]) -> dict[str, dict[str, Level]]:
    """{pools that differ in the noise alone: {sigma in words: the pool queried most often}}, by
    rising sigma.
    """
    groups: dict[str, dict[str, Source]] = {}
    for source in sources:
        if draws(source) == "noise" and query_count(source) > 1:
            levels, words = groups.setdefault(_but_its_noise(source), {}), strength(source)
            levels[words] = max(levels.get(words, source), source, key=query_count)
    entries = []
    for levels in groups.values():
        rising = dict(sorted(levels.items(), key=lambda item: _flow(item[1]).get("sigma", 0.0)))
        name = title(next(iter(rising.values())), len(rising))
        pairs = {words: Level(one, silent(one, sources)) for words, one in rising.items()}
        entries.append((name, pairs))
    return unique(entries)


def _flow(source: Source) -> dict:
    return source.info.get("flow") or {}


def _but_its_noise(source: Source) -> str:
    """How a pool was trained and queried, but for the strength of its noise."""
    recipe, args = source.recipe, source.recipe.get("model_args", {})
    trained = _without(recipe, "snapshots") | {"model_args": _without(args, "k")}
    equation = _without(_flow(source), "k", "sigma", "noise_sd")
    asked = {name: source.info.get(name) for name in SAME}
    alone = [trained, equation, asked] if _flow(source) else [source.label]
    return json.dumps(alone, sort_keys=True, default=str)


def _without(record: dict, *names: str) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name not in names}


def strength(source: Source) -> str:
    """How strong the noise is, in words."""
    if not (flow := _flow(source)):
        return "noise as built"
    return f"sigma = {flow['sigma']:.3g} (noise sd {flow['noise_sd']:.3g})"


def title(source: Source, levels: int) -> str:
    """The pools of a group in words."""
    info, flow, name = source.info, _flow(source), source.label
    if source.folder is not None:
        changed = {"draws": "plain", "queries": 1, "pool": "" if levels > 1 else info.get("pool")}
        if flow:
            replaced = f"{info.get('base')} with its last group replaced"
            changed["family"] = replaced if "base" in info else info["model"]
        name = label(info | changed, source.recipe)
    timed = flow.get("T") and flow.get("steps")
    return f"{name}, T = {flow['T']:g}, {flow['steps']} steps" if timed else name


def silent(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain outputs of the same models on the same samples, at the same epoch, with the
    noise switched off.
    """
    pool, but = source.info.get("pool"), ("queries", "draws")
    for other in reversed(sources) if pool else ():
        off = other.info.get("noise") is False and draws(other) == "plain"
        same = off and other.info.get("pool") == pool
        if same and alike(other, but=but) == alike(source, but=but):
            return other
    return None


def averaging(source: Source) -> list[str]:
    """Attacks that average the outputs, the headline first."""
    bound = {name: getattr(attacks.ATTACKS[name], "keywords", {}) for name in source.attacks()}
    return [name for name, options in bound.items() if options.get("combine") not in UNAVERAGED]


def measured(scores: Scores) -> pd.Series:
    """AUC with its 95 % interval, and on how much it rests."""
    row = compared.measure({"": scores}, fpr=()).loc[""]
    return row[["auc", "auc_low", "auc_high", "targets", "n1", "n0"]].astype(float)


def auc(row: pd.Series) -> str:
    return compared.ends(row["auc"], row["auc_low"], row["auc_high"])


def separation(auc: float, split: VarianceSplit, counts) -> pd.DataFrame:
    """d' and AUC of Gaussian margins for each number of answers, from the AUC of all
    `split.queries` answers.

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
