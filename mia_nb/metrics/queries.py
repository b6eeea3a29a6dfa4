"""Repeated queries of models with random outputs: how the risk grows with the number of queries,
and its limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import ndtr, ndtri

from mia_nb.arguments import Array, Count, Named, Rates, Several
from mia_nb.attacks import find
from mia_nb.attacks import score as run_attack
from mia_nb.attacks.learned import shokri
from mia_nb.checks import checked
from mia_nb.metrics.bootstrap import RESAMPLES
from mia_nb.metrics.pairs import need_membership, units
from mia_nb.metrics.tables import summary
from mia_nb.metrics.targets import FPR
from mia_nb.metrics.uncertainty import interval
from mia_nb.types import Scores, Signals

ENDS = ["value", "low", "high"]
# forms whose score is no mean over queries, so that the Gaussian model does not apply
UNAVERAGED = ("joint", "mean_sd", "last")
# in place of a lower end of sigma^2 of 0, in squared nats: averaging might then help without limit
SMALLEST = 1e-12


class VarianceSplit(NamedTuple):
    """Variance of the margin between the outputs for one sample (s^2) and between models (sigma^2),
    in squared nats.
    """

    between_queries: float
    between_models: float
    queries: int
    pairs: int
    between_queries_low: float
    between_queries_high: float
    between_models_low: float
    between_models_high: float


@checked
def variance_split(signals: Signals) -> VarianceSplit:
    """The part of the margin's variance that averaging over queries removes, and the part that
    stays.

    s^2: mean over models and audited samples of the unbiased variance over queries. sigma^2: the
    unbiased variance, over the models of one side (IN, OUT), of the mean margin over the Q queries,
    averaged over samples and sides; minus s^2 / Q, and at least 0.

    Parameters:
        signals: with membership, of Q >= 2 queries of stochastic models.

    Returns:
        A `VarianceSplit` with 95 % ends: Student's t over jackknife pseudo-values, one for each
        pair of complementary models; NaN below 3 pairs for sigma^2, below 2 for s^2. The ends hold
        for these samples.

    Raises:
        ValueError: for a single query, hidden membership, time steps on the query axis, fewer than
            two models on every side, and for models whose outputs for every sample are all equal:
            their noise is off.

    Caveat: where models share the noise of a query (one input-dropout mask for all), s^2 / Q is too
    much to subtract.
    """
    audited = ~signals.population
    need_membership(signals, "the spread between models is measured side by side")
    margin = signals.margin[:, :, audited]
    member = signals.member[:, audited]
    if margin.shape[1] < 2:
        raise ValueError(
            "these signals hold one query: the noise shows between outputs, query with queries=16"
            " or more"
        )
    if signals.query_kind in ("steps", "releases"):
        kind = {"steps": "time steps", "releases": "releases of a model"}[signals.query_kind]
        raise ValueError(
            f"these signals hold {kind}, not repeated queries: query with queries=R and"
            " per_step=False"
        )
    silent = np.flatnonzero(~np.ptp(margin, axis=1).any(1)).tolist()
    if silent:
        who = "" if len(silent) == len(margin) else f" of models {silent}"
        raise ValueError(
            f"declared stochastic, but all outputs{who} for a sample are equal: the noise is off;"
            " switch it on"
        )
    noise = np.array([margins_of_model.var(0, ddof=1).mean() for margins_of_model in margin])
    mean = margin.mean(1)
    queries = margin.shape[1]
    between_queries, between_models = _split(noise, mean, member, queries)
    if np.isnan(between_models):
        raise ValueError(
            f"no sample has two models on one side among {len(mean)}: train at least two pairs"
        )
    unit = units(member)
    pairs = np.unique(unit)
    left_out = []  # the split without each pair in turn
    for pair in pairs:
        kept = unit != pair
        left_out.append(_split(noise[kept], mean[kept], member[kept], queries))
    split = np.array([between_queries, between_models])
    pseudo_values = len(pairs) * split - (len(pairs) - 1) * np.array(left_out)
    low, high = np.maximum(interval(pseudo_values, pairs), 0)
    return VarianceSplit(
        between_queries=float(between_queries),
        between_models=float(max(between_models, 0)),
        queries=queries,
        pairs=len(pairs),
        between_queries_low=float(low[0]),
        between_queries_high=float(high[0]),
        between_models_low=float(low[1]),
        between_models_high=float(high[1]),
    )


def _split(
    noise: np.ndarray, mean: np.ndarray, member: np.ndarray, queries: int
) -> tuple[float, float]:
    """(s^2, sigma^2 before it is cut at 0) of these models; NaN where there are too few.

    Parameters:
        noise: (models,) mean variance over queries.
        mean: (models, N) mean margin over queries.
        member: (models, N).
        queries: their number.
    """
    if not len(noise):
        return np.nan, np.nan
    variances = []  # over the models of one side, of each sample that has two or more there
    for side in (member, ~member):
        enough = side.sum(0) >= 2
        on_side = side[:, enough]
        margin = mean[:, enough]
        models = on_side.sum(0)
        deviation = (margin - (margin * on_side).sum(0) / models) * on_side
        variances.append((deviation**2).sum(0) / (models - 1))
    variance = np.concatenate(variances)
    if not variance.size:
        return noise.mean(), np.nan
    return noise.mean(), variance.mean() - noise.mean() / queries


@checked
def query_curve(
    signals: Signals,
    attack: Named = "rmia",
    references: Signals | None = None,
    *,
    queries: Array = (1, 4, 16, 64),
    fpr: Rates = FPR,
    n_resamples: Several = RESAMPLES,
    seed: Count = 0,
) -> pd.DataFrame:
    """Risk of stochastic models as a function of the number R of queries that an attacker averages,
    and its limit.

    Fresh noise in every output averages out, so the AUC of one output is no property of the model.

    Parameters:
        signals: of the targets, Q queries.
        attack: a name of `attacks.ATTACKS`, or a function like those, with options bound by
            functools.partial; with combine="mean_sd", which needs R >= 2, R = 1 is left out.
        references: another pool; None: the other models of `signals`.
        queries: numbers R; the first R queries of targets and of references are used, R <= Q.
        fpr, n_resamples, seed: as in `metrics.summary`.

    Returns:
        the long table, a row per R (the last inf) and metric (auc; tpr, a row per fpr): columns R,
        attack, combine, metric, fpr, value, low, high (95 %, of `intervals`), chance, measurable,
        targets, pairs, n1, n0. The AUC at inf is extrapolated, Phi(Phi^-1(AUC_R) sqrt(sigma^2 +
        s^2 / R) / sigma) with the largest R and the variances of `variance_split`; its ends are the
        extremes over the ends of AUC_R, s^2 and sigma^2 (of AUC_R alone below 3 pairs); NaN where
        sigma^2 is not above 0. TPRs are not extrapolated, nor are joint, mean_sd and last, which
        average nothing.

    Raises:
        ValueError: as `variance_split` does, where no R is at most Q, and for attacks that cannot
            be run on the first R queries.

    Caveat: the model is Gaussian, with noise independent of membership and margins averaged; other
    attacks and `combine` follow it more loosely.
    """
    split = variance_split(signals)
    pools = [signals] if references is None else [signals, references]
    function = find(attack)[1]
    # options may be bound to an attack by functools.partial
    if getattr(function, "func", function) is shokri:
        raise ValueError(
            "shokri reads probabilities averaged over all queries, not the first R: query anew with"
            " each R"
        )
    counts = _counts(queries, pools)
    if getattr(function, "keywords", {}).get("combine") == "mean_sd":
        counts = [count for count in counts if count > 1]
    if not counts:
        raise ValueError("combine='mean_sd' needs several queries: take some R of 2 or more")
    tables = []
    for count in counts:
        first = [pool.select(queries=slice(0, count)) for pool in pools]
        measured = _measured(run_attack(attack, *first), fpr, n_resamples, seed)
        tables.append(measured.assign(R=float(count)))
    last = tables[-1]
    limit = last.assign(R=np.inf)
    is_auc = limit["metric"] == "auc"
    limit.loc[~is_auc, "measurable"] = False
    limit[ENDS] = np.nan
    averaged = last["combine"].iloc[0] not in UNAVERAGED
    if averaged and split.between_models > 0:
        auc = last.loc[is_auc, ENDS].iloc[0]
        limit.loc[is_auc, ENDS] = _limit(auc, counts[-1], split)
    table = pd.concat([*tables, limit], ignore_index=True)
    table.insert(0, "R", table.pop("R"))
    return table


def _counts(queries: Sequence[int], pools: list[Signals]) -> list[int]:
    """The wanted numbers of queries that all pools hold, ascending."""
    wanted = np.unique(np.atleast_1d(queries))
    if (wanted < 1).any() or (wanted % 1 != 0).any():
        raise ValueError(f"queries={queries}: wanted whole numbers from 1 on")
    most = min(pool.margin.shape[1] for pool in pools)
    available = wanted[wanted <= most]
    if not len(available):
        raise ValueError(
            f"queries={queries}, but there are {most} outputs for each sample: query more, or take"
            " fewer"
        )
    return available.astype(int).tolist()


def _measured(scores: Scores, fpr: Sequence[float], n_resamples: int, seed: int) -> pd.DataFrame:
    """AUC and TPRs of one number of queries."""
    table = summary({"": scores}, fpr, n_resamples=n_resamples, seed=seed)
    table = table[(table["attack"] == "") & table["metric"].isin(["auc", "tpr"])]
    columns = ["metric", "fpr", *ENDS, "chance", "measurable", "targets", "pairs", "n1", "n0"]
    table = table[columns].reset_index(drop=True)
    table.insert(0, "attack", scores.info["attack"])
    table.insert(1, "combine", scores.info["combine"])
    return table


def _limit(auc: pd.Series, count: int, split: VarianceSplit) -> list[float]:
    """AUC of infinitely many queries from that of `count`, and its ends."""
    corners = [(split.between_queries, split.between_models)]
    if np.isfinite(split.between_models_low):
        corners += [
            (split.between_queries_low, split.between_models_high),
            (split.between_queries_high, max(split.between_models_low, SMALLEST)),
        ]
    # by which Phi^-1 of the AUC grows when the noise of the outputs has averaged out
    ratios = np.array([np.sqrt(1 + s2 / count / sigma2) for s2, sigma2 in corners])
    value = ndtr(ndtri(auc["value"]) * ratios[0])
    low = ndtr(ndtri(auc["low"]) * ratios).min()
    high = ndtr(ndtri(auc["high"]) * ratios).max()
    return [float(value), float(low), float(high)]
