"""Attacks that learn a rule from the outputs of all references, which may be on other samples than
the target's: shokri, song_mittal.
"""

from __future__ import annotations

import warnings

import numpy as np

from mia_nb.arguments import Count, Flag
from mia_nb.attacks.inputs import check
from mia_nb.attacks.margins import combine_queries, log_p, over_queries
from mia_nb.checks import checked, one_of, quantity
from mia_nb.types import Signals

METRICS = {  # (attribute of Signals, sign by which larger is more likely a member)
    "correctness": ("correct", 1.0),
    "entropy": ("entropy", -1.0),
    "modified": ("modified_entropy", -1.0),
}
FEWEST_ROWS = 20  # of either kind in a class with a threshold of its own
ENOUGH_ROWS = 200  # of either kind in every class, for a classifier of each
MOST_ROWS = 200_000  # the most rows that shokri learns from
FLOOR = -50.0  # the smallest log-probability; margins are clipped to +-50


def _metric(signals: Signals, metric: str) -> np.ndarray:
    """(M, N) metric of every model."""
    if metric == "confidence":
        combine = "logmeanp"
        if signals.query_kind in ("steps", "releases"):
            combine = "last"
        return log_p(combine_queries(signals.margin, combine))
    name, sign = METRICS[metric]
    return sign * over_queries(getattr(signals, name), signals.query_kind)


@checked
def song_mittal(
    target: Signals,
    references: Signals | None = None,
    *,
    metric: str = "modified",
    per_class: Flag = True,
) -> np.ndarray:
    """Metric with a threshold per class learned on the references: s = v - tau_y, decision s >= 0.

    Parameters:
        target: signals of one model.
        references: signals of other models, membership included; their samples may be others.
        metric: v: correctness 1[argmax = y] (no threshold; AUC = 1/2 + gap/2); confidence log p_y;
            entropy sum p log p; modified (1 - p_y) log p_y + sum_{c != y} p_c log(1 - p_c).
        per_class: whether each class has a tau of its own. Classes with fewer than 20 reference
            rows of members or of others take the tau of all classes, with a warning.

    tau_y maximises (tpr + tnr) / 2 of v >= tau over the reference rows of class y; the smallest of
    equals is taken. Queries are averaged; of time steps, the last is taken. Source: Song & Mittal
    2021, Eq. 5-8. Raises ValueError without references (all metrics but correctness).
    """
    one_of("metric", metric, (*METRICS, "confidence"))
    check(
        "song_mittal",
        target,
        references,
        needs_references=metric != "correctness",
        same_samples=False,
    )
    value = _metric(target, metric)[0]
    if np.isnan(value).all():
        raise ValueError(
            f"song_mittal with metric={metric!r}: these signals hold no entropies: query the pool"
            " itself, or take another metric"
        )
    if metric == "correctness":
        return value
    audited = ~references.population
    values = _metric(references, metric)[:, audited]
    member = references.member[:, audited]
    labels = references.labels[audited]
    tau = np.full(value.shape, np.nan)
    classes = np.unique(target.labels) if per_class else ()
    for y in classes:
        of_class = labels == y
        if _smaller_count(member[:, of_class]) >= FEWEST_ROWS:
            tau[target.labels == y] = _threshold(values[:, of_class], member[:, of_class])
    without_own = np.isnan(tau)
    if without_own.any():
        tau[without_own] = _threshold(values, member)
        if per_class:
            few = quantity(len(np.unique(target.labels[without_own])), "class", "classes")
            warnings.warn(
                f"song_mittal: the global threshold serves {few} with under {FEWEST_ROWS}"
                " reference rows",
                stacklevel=2,
            )
    return value - tau


def _smaller_count(member: np.ndarray) -> int:
    """The number of members or that of others, whichever is smaller."""
    return min(member.sum(), (~member).sum())


def _threshold(values: np.ndarray, member: np.ndarray) -> float:
    """Smallest observed value tau that maximises the balanced accuracy of `value >= tau`, computed
    in integers, so that ties are exact.
    """
    order = np.argsort(values, axis=None)
    values = values.ravel()[order]
    member = member.ravel()[order]
    members = int(member.sum())
    others = member.size - members
    first = np.flatnonzero(np.r_[True, np.diff(values) > 0])  # place of each different value
    members_below = np.r_[0, np.cumsum(member)][first]
    others_below = first - members_below
    # the true positive and the true negative rate, times both counts
    rates = (members - members_below) * others + others_below * members
    return values[first[rates.argmax()]]


@checked
def shokri(
    target: Signals,
    references: Signals | None = None,
    *,
    seed: Count = 0,
) -> np.ndarray:
    """Classifier of members trained on the references' outputs: s = log-odds of "member".

    Parameters:
        target: signals of one model.
        references: signals of other models, membership included; their samples may be others.
        seed: of the choice of at most 200,000 rows to learn from, by class and membership.

    A logistic regression for each class, standardised and balanced; where a class has under 200
    rows of members or of others, one for all classes, with the one-hot label among its features.
    Rows are pairs (reference, sample). Features are means over queries: the ten largest
    log-probabilities in descending order (Signals do not keep the paper's unsorted vector), phi,
    and correctness. Source: Shokri, Stronati, Song, Shmatikov 2017.
    Raises ValueError without references that have members and non-members.
    """
    if not target.top_log_p.shape[-1]:
        raise ValueError(
            "shokri needs sorted log-probabilities (top_log_p), and these signals have none: query"
            " a pool, or use the other attacks"
        )
    check("shokri", target, references, needs_references=True, same_samples=False)
    model, sample = _rows(references, MOST_ROWS, seed)
    member = references.member[model, sample]
    labels = references.labels[sample]
    if member.all() or not member.any():
        raise ValueError(
            "shokri needs references with members and non-members to learn the difference"
        )
    train = _features(references, model, sample)
    test = _features(target, 0, np.arange(len(target.labels)))
    classes = np.unique(target.labels)
    if min(_smaller_count(member[labels == y]) for y in classes) < ENOUGH_ROWS:
        train = np.hstack([train, labels[:, None] == classes])
        test = np.hstack([test, target.labels[:, None] == classes])
        return _log_odds(train, member, test)
    score = np.empty(len(test))
    for y in classes:
        train_rows = labels == y
        test_rows = target.labels == y
        score[test_rows] = _log_odds(train[train_rows], member[train_rows], test[test_rows])
    return score


def _rows(signals: Signals, max_rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(model, sample) of at most `max_rows` audited rows, drawn evenly from every group of one
    class and membership.
    """
    audited = np.flatnonzero(~signals.population)
    size = len(signals.member) * len(audited)
    if size <= max_rows:
        row = np.arange(size)
    else:
        # shuffled, then sorted by group: evenly spaced rows are an equal share of every group
        row = np.random.default_rng(seed).permutation(size)
        group = (2 * signals.labels[audited] + signals.member[:, audited]).ravel()
        row = row[np.argsort(group[row], kind="stable")]
        row = row[np.linspace(0, size - 1, max_rows).astype(int)]
    return row // len(audited), audited[row % len(audited)]


def _features(signals: Signals, model: np.ndarray | int, sample: np.ndarray) -> np.ndarray:
    """(rows, features) of `shokri` of these samples under these models."""
    top_log_p = np.maximum(signals.top_log_p[model, sample], FLOOR).astype(np.float64)
    phi = signals.margin.mean(1)[model, sample].clip(FLOOR, -FLOOR)
    correct = signals.correct.mean(1)[model, sample]
    return np.column_stack([top_log_p, phi, correct])


def _log_odds(train: np.ndarray, member: np.ndarray, test: np.ndarray) -> np.ndarray:
    """(rows,) log-odds of "member" of test rows, learned from training rows (rows, features)."""
    # imported here: a second of start-up that only this attack needs
    from sklearn.linear_model import LogisticRegression

    centre = train.mean(0)
    spread = train.std(0)
    spread[spread < 1e-9] = 1
    model = LogisticRegression(class_weight="balanced", solver="newton-cholesky")
    model.fit((train - centre) / spread, member)
    return model.decision_function((test - centre) / spread)
