"""Noise is not privacy: what one noisy answer hides, the average of many shows again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache, lru_cache

import ipywidgets as W
import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.queries import UNAVERAGED
from mia_nb.plots.curves import _curve
from mia_nb.plots.spiking import BELOW
from mia_nb.plots.style import DASHES, GREY, LINES, translucent
from mia_nb.types import Scores
from mia_nb.widgets import compared
from mia_nb.widgets.explorer import ROW, Explorer, View, dropdown, message, steps
from mia_nb.widgets.figure import plain
from mia_nb.widgets.networks import alike, draws, query_count
from mia_nb.widgets.stored import Source, label, only

TITLE = "Noise is not privacy"
NOTHING = (
    "no model with noise was asked twice yet; make some with: mia-nb run 09_neural_de --preset tour"
)
ALL = "all"
RANKED = "sample 1: the margins of models trained on it exceed those of others most"
AHEAD = (
    1_000_000  # targets x answers x samples up to which every number of answers is scored at once
)
KEPT = 12  # Scores at once, of 7 MB each for 16 targets and 50,000 samples


def noise(sources: Sequence[Source]) -> Explorer:
    """Networks that answer at random: the attack after one answer, after R averaged ones, and with the noise off.

    Pools that differ in the noise per step k alone share an entry, sigma chooses among them. One sample: its answers and their
    running mean, from a model that was trained on it and from one that was not; samples are ranked by how far their two worlds
    lie apart. The attack averages the margins of the first R answers, of target and references alike; attacks that read how
    answers differ (lira_joint) are left out. Noise off: the same models asked once without their noise.

    closed form: margins are Gaussian, d' (R) = d / sqrt(v + s2 / R) with s2 the variance between answers and v that between
    models (`metrics.variance_split`), d fitted at the largest R, AUC = Phi(d' / sqrt 2), ROC Phi(Phi^-1(FPR) + d').
    Intervals are those of `metrics.intervals` with 200 draws. Nothing here says that a network withholds anything: noise that
    is fresh in every answer averages away, and what is left after it may be as little or as much as without it. Where
    targets x answers x samples exceed a million it starts with one target, as scoring all of them takes seconds.
    """
    groups = grouped(sources)
    if not groups:
        return message(TITLE, NOTHING)
    offered = cache(lambda group, level: averaging(groups[group][level][0]))
    data = Measured(groups)

    def draw(pool, sigma, target, attack, answers, sample, closed) -> View:
        at = (pool, sigma, attack, target)
        table, off = data.table(*at, answers), data.quiet(*at)
        figures = {
            "sample": data.settling(pool, sigma, target, sample, answers, closed),
            "curve": data.curve(*at, answers, closed),
            "histogram": data.histograms(*at, answers),
            "roc": data.roc(*at, answers, closed),
        }
        one, now = table.loc[1], table.loc[answers]
        sentence = f"{sigma}: one answer gives AUC {_ends(one)}"
        sentence += f", {answers} answers {_ends(now)}" if answers > 1 else ""
        sentence += f", the model without its noise {_ends(off)}" if off is not None else ""
        sentence += f" ({attack}, {_who(target, now)}, n0 = {now['n0']:,.0f})"
        note = [
            "95 % intervals",
            "noise that is fresh in every answer averages away; what it leaves is measured, not promised",
        ]
        note += (
            []
            if off is not None
            else [f"answers with the noise off are not stored: {asking(groups[pool][sigma][0])}"]
        )
        return View(
            sentence,
            figures,
            data.numbers(*at, answers),
            "; ".join([*note, RANKED, *data.notes(*at, closed)]),
        )

    def adjust(values) -> dict:
        levels = groups[values["pool"]]
        sigma = values["sigma"] if values["sigma"] in levels else next(iter(levels))
        source, names = levels[sigma][0], offered(values["pool"], sigma)
        models, most, _ = source.signals.margin.shape
        target, first = values["target"], values["target"] is None
        if first:
            target = ALL if source.signals.margin.size <= AHEAD else 0
        target = target if target == ALL or target < models else ALL
        samples = len(source.audited)
        words = [(short(one), word) for word, (one, _) in levels.items()]
        return {
            "sigma": {"options": words, "value": sigma, "disabled": len(levels) == 1},
            "target": {"options": [ALL, *range(models)], "value": target},
            "attack": {
                "options": names,
                "value": values["attack"] if values["attack"] in names else names[0],
            },
            "answers": {"max": most, "value": most if first else min(values["answers"], most)},
            "sample": {"max": samples, "value": min(values["sample"], samples)},
        }

    controls = {
        "pool": dropdown("pool", list(groups), next(iter(groups))),
        "sigma": steps("sigma", [""], ""),
        "target": dropdown("target"),
        "attack": dropdown("attack"),
        "answers": W.IntSlider(description="answers R", min=1, max=1, value=1, **ROW),
        "sample": W.IntSlider(description="sample", min=1, max=1, value=1, **ROW),
        "closed": W.Checkbox(description="closed form", value=False, **ROW),
    }
    rows = [["sample"], ["curve"], ["histogram"], ["roc"]]
    return Explorer(TITLE, controls, draw, rows=rows, adjust=adjust)


class Measured:
    """What the pictures show, each computed once. Keys are (pool, sigma, attack, target), then the number of answers R."""

    def __init__(self, groups: dict):
        self.groups = groups
        self.one = lru_cache(KEPT)(self._one)
        self.row = cache(lambda *at: measured(self.one(*at)))
        self.flags = cache(lambda *at: tuple(self.one(*at).info["flags"]))
        self.quiet, self.split, self.theory = (
            cache(self._quiet),
            cache(self._split),
            cache(self._theory),
        )
        self.binned = cache(lambda *at: binned(self.one(*at)))
        self.histograms, self.settling = cache(self._histograms), cache(self._settling)
        self.third = cache(lambda *at: curves(f"{at[-1]} answers", self.one(*at)))
        self.base, self.against, self.order = (
            cache(self._base),
            cache(self._against),
            cache(self._order),
        )

    def _one(self, pool, sigma, attack, target, count) -> Scores:
        """A target, or all, with their first `count` answers, the references too."""
        source = self.groups[pool][sigma][0]
        if target == ALL and count == source.signals.margin.shape[1]:
            return source.scores(attack)
        return attacks.score(
            attack,
            source.signals.select(queries=slice(0, count)),
            targets=None if target == ALL else target,
        )

    def _quiet(self, pool, sigma, attack, target) -> pd.Series | None:
        """The same models with their noise off; None where that is not stored."""
        found = self.quiet_scores(pool, sigma, attack, target)
        return None if found is None else measured(found)

    def quiet_scores(self, pool, sigma, attack, target) -> Scores | None:
        source = self.groups[pool][sigma][1]
        return (
            None
            if source is None
            else only(source.scores(attack), None if target == ALL else target)
        )

    def table(self, pool, sigma, attack, target, answers) -> pd.DataFrame:
        """Index R: every number of answers where that is quick, else doublings and what is asked for now."""
        margin = self.groups[pool][sigma][0].signals.margin
        most = margin.shape[1]
        few = margin.size <= AHEAD * (1 if target == ALL else len(margin))
        counts = (
            set(range(1, most + 1))
            if few
            else {2**i for i in range(most.bit_length())} | {most, answers}
        )
        rows = {count: self.row(pool, sigma, attack, target, count) for count in sorted(counts)}
        return pd.DataFrame.from_dict(rows, orient="index")

    def _split(self, pool, sigma):
        """`metrics.variance_split`, or why there is none."""
        try:
            return metrics.variance_split(self.groups[pool][sigma][0].signals)
        except ValueError as error:
            return str(error)

    def _theory(self, pool, sigma, attack, target) -> pd.DataFrame | None:
        """Closed form for every R and inf: separation d' and AUC; None where the variances cannot be told apart."""
        split = self.split(pool, sigma)
        if isinstance(split, str):
            return None
        most = split.queries
        return separation(
            self.row(pool, sigma, attack, target, most)["auc"], split, [*range(1, most + 1), np.inf]
        )

    def _histograms(self, pool, sigma, attack, target, count) -> dict:
        """Scores after one answer and after `count`, side by side on the axes that one and all answers need."""
        at, most = (
            (pool, sigma, attack, target),
            self.groups[pool][sigma][0].signals.margin.shape[1],
        )
        (left, _), (right, _) = self.binned(*at, 1), self.binned(*at, count)
        edges = [self.binned(*at, end)[1] for end in (1, most)]
        ends = [min(low for low, _ in edges), max(high for _, high in edges)]
        layout, traces = dict(left["layout"]), list(left["data"])
        traces += [trace | {"xaxis": "x2", "showlegend": False} for trace in right["data"]]
        layout["xaxis"] = layout["xaxis"] | {"range": ends, "domain": [0, 0.48]}
        layout["xaxis2"] = layout["xaxis"] | {"domain": [0.52, 1], "anchor": "y"}
        after = "one answer" if count == 1 else f"{count} answers"
        heading = {"yref": "y domain", "y": 1.02, "yanchor": "bottom", "showarrow": False}
        places = [("x domain", "after one answer"), ("x2 domain", f"after {after}")]
        layout["annotations"] = [
            heading | {"x": 0.5, "xref": x, "text": words} for x, words in places
        ]
        share = [self.row(*at, end)["auc"] for end in (1, count)]
        words = f"A member outscores a non-member in {share[0]:.1%} of cases (one answer)"
        words += f", {share[1]:.1%} ({count})" if count > 1 else ""
        layout |= {
            "title": layout["title"] | {"text": words},
            "height": 370,
            "legend": BELOW | {"y": -0.3},
        }
        return left | {"data": traces, "layout": layout}

    def _base(self, pool, sigma, attack, target) -> dict:
        """One answer, and the noise off."""
        drawn = {"one answer": self.one(pool, sigma, attack, target, 1)}
        off = self.quiet_scores(pool, sigma, attack, target)
        return plain(plots.roc_pair(drawn | ({} if off is None else {"noise off": off})))

    def roc(self, pool, sigma, attack, target, count, closed) -> dict:
        """The base, the curve of `count` answers, and the closed form's."""
        figure = self.base(pool, sigma, attack, target)
        traces = list(figure["data"])
        if count > 1:
            traces += self.third(pool, sigma, attack, target, count)
        theory = self.theory(pool, sigma, attack, target) if closed else None
        if theory is not None:
            fpr = np.geomspace(1e-5, 1, 200)
            tpr = ndtr(ndtri(fpr) + theory.loc[count, "d"])
            line = {"color": GREY, "dash": "dot", "width": 2}
            for axis in ("", "2"):
                traces.append(
                    _line("closed form", fpr, tpr, axis, line | {"shape": "linear"}, not axis)
                )
        row = self.row(pool, sigma, attack, target, count)
        words = "one answer" if count == 1 else f"{count} answers"
        title = figure["layout"]["title"] | {
            "text": f"ROC after {words}: AUC {_ends(row)}, n0 = {row['n0']:,.0f}"
        }
        return figure | {"data": traces, "layout": figure["layout"] | {"title": title}}

    def _against(self, pool, sigma, attack, target, counts, closed) -> dict:
        rows = {count: self.row(pool, sigma, attack, target, count) for count in counts}
        table = pd.DataFrame.from_dict(rows, orient="index")
        off = self.quiet(pool, sigma, attack, target)
        level = None if off is None else tuple(off[["auc", "auc_low", "auc_high"]])
        theory = self.theory(pool, sigma, attack, target) if closed else None
        return plain(plots.auc_against_answers(table, quiet=level, closed=theory))

    def curve(self, pool, sigma, attack, target, answers, closed) -> dict:
        """AUC against the answers, a star at what is asked for now."""
        table = self.table(pool, sigma, attack, target, answers)
        most = table.index.max()
        counts = tuple(
            count
            for count in table.index
            if len(table) == most or count == most or count & (count - 1) == 0
        )
        figure = self.against(pool, sigma, attack, target, counts, closed)
        star = {"symbol": "star", "size": 15, "color": GREY, "line": {"width": 1, "color": "white"}}
        mark = {
            "type": "scatter",
            "mode": "markers",
            "marker": star,
            "showlegend": False,
            "hoverinfo": "skip",
        }
        return figure | {
            "data": [
                *figure["data"],
                mark | {"x": [np.log2(answers)], "y": [table.loc[answers, "auc"]]},
            ]
        }

    def _order(self, pool, sigma) -> np.ndarray:
        """Audited columns, first those whose margin is highest in models trained on them against the others."""
        source = self.groups[pool][sigma][0]
        mean, member = (
            part[:, source.audited]
            for part in (source.signals.margin.mean(1), source.signals.member)
        )
        with np.errstate(invalid="ignore"):
            gap = (mean * member).sum(0) / member.sum(0) - (mean * ~member).sum(0) / (~member).sum(
                0
            )
        return source.audited[np.argsort(-np.nan_to_num(gap, nan=-np.inf), kind="stable")]

    def _settling(self, pool, sigma, target, rank, answers, closed) -> dict:
        """The answers on one sample of a model that saw it and of one that did not."""
        source, quiet = self.groups[pool][sigma]
        column = self.order(pool, sigma)[rank - 1]
        own, member = source.signals.margin[:, :, column], source.signals.member[:, column]
        models = two_worlds(
            member, source.signals.member[:, source.audited], None if target == ALL else target
        )
        levels = (
            None
            if quiet is None
            else {
                side: float(quiet.signals.margin[m].mean(0)[column]) for side, m in models.items()
            }
        )
        spread = {side: float(own[m].std(ddof=1)) for side, m in models.items()} if closed else None
        kind = source.classes[int(source.signals.labels[column])]
        title = f"Sample {source.samples[column]} ({kind}), rank {rank} of {len(source.audited):,}"
        answered = {side: own[m] for side, m in models.items()}
        return plain(
            plots.settling(answered, asked=answers, quiet=levels, spread=spread, title=title)
        )

    def numbers(self, pool, sigma, attack, target, answers) -> pd.DataFrame:
        """Measured and closed-form separation of one answer, of R, of all, and with the noise off."""
        most, at = (
            self.groups[pool][sigma][0].signals.margin.shape[1],
            (pool, sigma, attack, target),
        )
        theory, off = self.theory(*at), self.quiet(*at)
        rows = [
            (str(count), self.row(*at, count), count) for count in dict.fromkeys([1, answers, most])
        ]
        rows += [("noise off", off, np.inf)] if off is not None else []
        table = []
        for words, row, count in rows:
            expected = "n/m" if theory is None else f"{theory.loc[count, 'd']:.3f}"
            table.append({"answers": words, "AUC": _ends(row), "d' measured": f"{np.sqrt(2) * ndtri(row['auc']):.3f}",
                          "d' closed form": expected, "targets": f"{row['targets']:.0f}",
                          "n1": f"{row['n1']:,.0f}", "n0": f"{row['n0']:,.0f}"})  # fmt: skip
        return pd.DataFrame(table)

    def notes(self, pool, sigma, attack, target, closed) -> list[str]:
        """Flags of the attack, the two variances, and how far the closed form may be trusted."""
        split, flags = self.split(pool, sigma), self.flags(pool, sigma, attack, target, 1)
        if isinstance(split, str):
            return [*flags, f"no closed form: {split}"]
        words = f"variance of the margin between answers s2 = {split.between_queries:.3g} "
        words += f"[{split.between_queries_low:.3g}, {split.between_queries_high:.3g}], "
        words += f"between models v = {split.between_models:.3g} [{split.between_models_low:.3g}, {split.between_models_high:.3g}]"
        formula = "closed form: Gaussian margins, d' = d / sqrt(v + s2 / R), fitted at the largest R, so that it agrees there"
        return [
            *flags,
            words,
            *([formula, "attacks other than loss follow it more loosely"] if closed else []),
        ]


def binned(scores: Scores) -> tuple[dict, tuple[float, float]]:
    """The histogram as JSON, and the ends of its bins."""
    figure = plots.histogram(scores)
    x = figure.data[0].x
    return plain(figure), (float(x[0]), float(x[-1]))


def grouped(sources: Sequence[Source]) -> dict[str, dict[str, tuple[Source, Source | None]]]:
    """{pools that differ in the noise alone: {sigma in words: (asked most often, the same pool with its noise off)}}."""
    found: dict[str, dict] = {}
    for source in sources:
        if draws(source) == "noise" and query_count(source) > 1:
            info, recipe = source.info, json.loads(json.dumps(source.recipe))
            recipe.get("model_args", {}).pop("k", None)
            recipe.pop("snapshots", None)
            flow = {
                name: value
                for name, value in (info.get("flow") or {}).items()
                if name not in ("k", "sigma", "noise_sd")
            }
            asked = {
                name: info.get(name)
                for name in (
                    "dataset",
                    "epoch",
                    "output",
                    "input_dropout",
                    "temperature",
                    "augment",
                )
            }
            same = json.dumps(
                [recipe, flow, asked] if info.get("flow") else [source.label],
                sort_keys=True,
                default=str,
            )
            found.setdefault(same, {}).setdefault(level(source), []).append(source)
    named: dict[str, dict] = {}
    for levels in found.values():
        best = {
            word: max(same, key=query_count)
            for word, same in sorted(levels.items(), key=lambda item: _sigma(item[1][0]))
        }
        name = title(next(iter(best.values())), len(best))
        named[name if name not in named else f"{name} ({len(named) + 1})"] = {
            word: (source, silent(source, sources)) for word, source in best.items()
        }
    return named


def level(source: Source) -> str:
    """How strong the noise is, in words."""
    flow = source.info.get("flow")
    return (
        f"sigma = {flow['sigma']:.3g} (noise sd {flow['noise_sd']:.3g})"
        if flow
        else "noise as built"
    )


def short(source: Source) -> str:
    """The same for a slider."""
    flow = source.info.get("flow")
    return f"{flow['sigma']:.3g}" if flow else "as built"


def title(source: Source, levels: int) -> str:
    """The pools of a group in words."""
    info, flow = source.info, source.info.get("flow") or {}
    name = source.label
    if source.folder is not None:
        changed = {"draws": "plain", "queries": 1, "pool": "" if levels > 1 else info.get("pool")}
        if flow:
            changed["family"] = (
                f"{info['base']} with its last group replaced" if "base" in info else info["model"]
            )
        name = label(info | changed, source.recipe)
    return (
        f"{name}, T = {flow['T']:g}, {flow['steps']} steps"
        if flow.get("T") and flow.get("steps")
        else name
    )


def silent(source: Source, sources: Sequence[Source]) -> Source | None:
    """The newest plain answers of the same models on the same samples, at the same epoch, with the noise switched off."""
    pool, but = source.info.get("pool"), ("queries", "draws")
    for other in reversed(sources) if pool else ():
        off = other.info.get("noise") is False and draws(other) == "plain"
        if (
            off
            and other.info.get("pool") == pool
            and alike(other, but=but) == alike(source, but=but)
        ):
            return other
    return None


def asking(source: Source) -> str:
    """The call that gives a source's twin without noise."""
    options = {
        name: source.info[name]
        for name in ("limit", "output", "output_args")
        if source.info.get(name)
    }
    given = "".join(f"{name}={value!r}, " for name, value in options.items())
    epoch = f".at({source.info['epoch']})" if source.info.get("epoch") else ""
    return f"query(pool{epoch}, images, {given}noise=False)"


def averaging(source: Source) -> list[str]:
    """Attacks that average the answers, the headline first."""
    bound = {name: getattr(attacks.ATTACKS[name], "keywords", {}) for name in source.attacks()}
    return [name for name, options in bound.items() if options.get("combine") not in UNAVERAGED]


def measured(scores: Scores) -> pd.Series:
    """AUC with its 95 % interval, and on how much it rests."""
    return (
        compared.measure({"": scores}, fpr=())
        .loc["", ["auc", "auc_low", "auc_high", "targets", "n1", "n0"]]
        .astype(float)
    )


def separation(auc: float, split: metrics.VarianceSplit, counts) -> pd.DataFrame:
    """d' and AUC of Gaussian margins for each number of answers, from the AUC of all `split.queries` answers.

    d'(R) = sqrt 2 Phi^-1(AUC) spread(Q) / spread(R), spread(R)^2 = v + s2 / R; AUC(R) = Phi(d'(R) / sqrt 2). Index R.
    """
    whole = np.sqrt(2) * ndtri(auc) * split.spread(split.queries)
    with np.errstate(divide="ignore", invalid="ignore"):
        d = np.array([whole / np.float64(split.spread(count)) for count in counts])
    return pd.DataFrame(
        {"d": d, "auc": ndtr(d / np.sqrt(2))}, index=pd.Index(counts, dtype=float, name="R")
    )


def two_worlds(member: np.ndarray, masks: np.ndarray, target: int | None) -> dict[bool, int]:
    """{trained on it: model}: the target, else the first model; against it its complement, else the first on the other side."""
    first = (int(np.argmax(member)) if member.any() else 0) if target is None else target
    others = np.flatnonzero(member != member[first])
    others = sorted(others.tolist(), key=lambda m: not (masks[m] != masks[first]).all())
    found = {bool(member[first]): first} | ({not member[first]: others[0]} if others else {})
    return dict(sorted(found.items(), reverse=True))


def curves(name: str, scores: Scores) -> list[dict]:
    """A third ROC beside those of `plots.roc_pair`, as plain traces for both panels."""
    traces, colour = [], LINES[2]
    for log, axis in ((False, ""), (True, "2")):
        curve, shape = _curve(scores, log, 0.95), "hv" if log else "linear"
        edge = {"width": 0, "shape": shape}
        low, high = (
            _line(name, curve.fpr, side, axis, edge, False) for side in (curve.low, curve.high)
        )
        skip = {"hoverinfo": "skip", "hovertemplate": None}
        traces += [
            low | skip,
            high | skip | {"fill": "tonexty", "fillcolor": translucent(colour, 0.18)},
        ]
        line = {"color": colour, "dash": DASHES[2], "shape": shape, "width": 2}
        traces.append(
            _line(name, curve.fpr, curve.tpr, axis, line, not axis)
            | {"name": f"{name}  AUC {curve.auc:.3f}"}
        )
    return traces


def _line(name, x, y, axis, line, shown) -> dict:
    values = {
        "x": np.asarray(x, float).round(7).tolist(),
        "y": np.asarray(y, float).round(6).tolist(),
        "mode": "lines",
    }
    place = {
        "type": "scatter",
        "name": name,
        "legendgroup": name,
        "showlegend": shown,
        "xaxis": f"x{axis}",
        "yaxis": f"y{axis}",
    }
    return (
        values
        | place
        | {"line": line, "hovertemplate": "%{y:.2%} of members at %{x:.3%} false alarms"}
    )


def _ends(row) -> str:
    return f"{row['auc']:.3f} [{row['auc_low']:.3f}, {row['auc_high']:.3f}]"


def _who(target, row) -> str:
    return f"{row['targets']:.0f} targets" if target == ALL else f"target {target}"


def _sigma(source: Source) -> float:
    return float((source.info.get("flow") or {}).get("sigma", 0.0))
