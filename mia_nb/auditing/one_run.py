"""Lower bounds on epsilon from training runs, one or several, whose canaries were each included by a fair coin."""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from statistics import NormalDist
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy.special import (
    bdtr,
    bdtrc,
    betaincc,
    betainccinv,
    betaincinv,
    chdtr,
    chdtrc,
    expit,
    ndtr,
    ndtri,
)

from mia_nb.accounting import gaussian_epsilon
from mia_nb.attacks import score as run_attack
from mia_nb.auditing.bounds import check_level
from mia_nb.checks import checked, instance, mask, one_of, reals, whole
from mia_nb.types import Scores, Signals

GRID = (0.01, 0.05, 0.25, 1.0)  # shares of the canaries that are guessed when no number is given
NODES = np.polynomial.legendre.leggauss(96)
TOLERANCE = 1e-9
TOP = 1 - 2**-53  # the largest probability below 1
MOST = 10**10  # canaries: the time of fdp grows with the square root of their number
CHANCE, HALVES = (
    1e-6,
    1e-4,
)  # at most about so often fair coins are refused, by any check and by that for halves
LABELS = {
    "steinke": "at least",
    "fdp": "at least, assuming a Gaussian trade-off",
    "xiang": "at least, assuming a Gaussian trade-off",
}
FEWEST_APART = 4  # models: with fewer, half of them leave one reference
SEPARATE = "trainings that share no randomness"
COINS = "each canary included by its own fair coin"
CONDITIONS = {
    "steinke": f"{COINS}; holds for any (epsilon, delta)-DP training",
    "fdp": f"{COINS}; tests Gaussian trade-offs only",
    "xiang": f"{COINS}; tests Gaussian trade-offs only, in the model of its authors: canaries that do not interfere",
}


class OneRun(NamedTuple):
    """A lower bound from one run, at delta, for one record added or removed: `epsilon` from `correct` of `guesses`.

    `alpha` is the level of the one test behind the bound, after division by the number of bounds among which it was picked;
    `tried` the numbers of guesses; `left_out` counts canaries without a score.
    """

    epsilon: float
    guesses: int
    correct: int
    canaries: int
    delta: float
    confidence: float
    method: str
    label: str
    conditions: str
    alpha: float
    tried: tuple[int, ...]
    left_out: int

    @property
    def at_most(self) -> float:
        """The bound had every guess been right: no claim above it could have been exceeded."""
        return _ceiling(self)


class Audit(NamedTuple):
    """A bound from all targets together (`runs` of them, `target` None), or the best of one bound a target (`runs` 1).

    After Bonferroni over attempts, numbers of guesses and, one by one, targets. `attack`: the word of the scores. `targets`:
    a row per target with canaries m and left_out; one by one also epsilon, guesses r, correct v, alpha.
    """

    epsilon: float
    target: int | None
    runs: int
    canaries: int
    guesses: int
    correct: int
    alpha: float
    delta: float
    confidence: float
    method: str
    label: str
    conditions: str
    attack: str
    attempts: int
    tried: tuple[int, ...]
    targets: pd.DataFrame

    @property
    def at_most(self) -> float:
        """The bound had every guess been right: no claim above it could have been exceeded."""
        return _ceiling(self)


def _ceiling(found: OneRun | Audit) -> float:
    about = {
        "canaries": found.canaries,
        "delta": found.delta,
        "confidence": 1 - found.alpha,
        "method": found.method,
    }
    return max(one_run_epsilon(guesses=r, correct=r, **about) for r in found.tried)


@checked
def one_run_epsilon(
    *,
    canaries: int,
    guesses: int,
    correct: int,
    delta: float,
    confidence: float = 0.95,
    method: str = "steinke",
) -> float:
    """Lower bound on epsilon at delta from v = `correct` of r = `guesses` on m = `canaries`, at alpha = 1 - confidence.

    steinke  any (epsilon, delta)-DP training. q = 1 / (1 + e^-eps), S(j) = P[Bin(r, q) >= j],
             p(eps) = S(v) + 2 m delta max_{1<=i<=v} (S(v-i) - S(v)) / i; the bound is sup{eps : p(eps) < alpha}
             (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846)
    fdp      largest mu-Gaussian trade-off F(a) = Phi(Phi^-1(a) - mu) that is rejected: t = alpha r / m, a = t v / r,
             b = t (r - v) / r; for i = v-1, ..., 0: b' = max(b, F(a)), a += i / (r - i) (b' - b), b = b'; rejected iff
             a + b > r / m (Mahloujifar, Melis and Chaudhuri 2024, arXiv 2410.22235)
    xiang    mu with P[errors <= r - v] = E_W BinCDF(r - v; r, e(W)) = alpha, W ~ Beta(m - r, r + 1) (0 if r = m),
             e(w) = Phi(-x - mu/2) / (Phi(-x - mu/2) + Phi(-x + mu/2)), x the w-quantile of |N(mu/2, 1)|
             (Xiang, Wang, Xiao, Tian and Wang 2025)
    The last two give mu, which the exact Gaussian formula turns into epsilon. A small bound is no evidence of anything: audits
    in one run are tight only where canaries do not interfere (Keinan, Shenfeld and Ligett 2025).
    Raises ValueError unless 0 <= correct <= guesses <= canaries <= 10^10 are whole numbers,
    guesses >= 1, and delta > 0 for fdp and xiang.
    """
    one_of("method", method, LABELS)
    for name, value in (("correct", correct), ("guesses", guesses), ("canaries", canaries)):
        whole(name, value, 0)
    if not (0 <= correct <= guesses <= canaries and guesses >= 1):
        raise ValueError(
            f"correct={correct}, guesses={guesses}, canaries={canaries}: wanted whole numbers, correct <= guesses <= canaries "
            "and a guess"
        )
    if canaries > MOST:
        raise ValueError(f"canaries={canaries}: wanted at most {MOST:,}; audit a part of them")
    check_level(confidence, delta)
    m, r, v, alpha = int(canaries), int(guesses), int(correct), 1 - confidence
    if method == "steinke":
        return _steinke(m, r, v, delta, alpha)
    if delta == 0:
        raise ValueError(
            f"delta=0: method={method!r} tests Gaussian trade-offs, which have no finite epsilon at 0; take 1e-5"
        )
    mu = _largest(_fdp_rejects(m, r, v, alpha)) if method == "fdp" else _xiang(m, r, r - v, alpha)
    return float(gaussian_epsilon(mu, delta)) if mu > 0 else 0.0


def _steinke(m, r, v, delta, alpha) -> float:
    """(S(v-i) - S(v)) / i is a mean of the pmf over the i values below v. The pmf has one peak, so
    that the means rise until one exceeds the next value of the pmf, and fall from there: bisection
    finds the largest."""

    def excess(epsilon):
        wrong = expit(-epsilon)

        def at_least(j):
            return betaincc(r - j + 1, j, wrong) if j else 1.0

        def mean(i):
            return (at_least(v - i) - tail) / i

        def past_the_peak(i):
            return at_least(v - i - 1) - at_least(v - i) < mean(i)

        tail = at_least(v)
        if delta == 0 or tail >= alpha:
            return tail - alpha
        best = 1 + bisect_left(range(1, v), True, key=past_the_peak)
        return tail + 2 * m * delta * mean(best) - alpha

    if v == 0 or excess(0.0) >= 0:
        return 0.0
    from scipy.optimize import brentq

    wrong = betainccinv(r - v + 1, v, alpha)
    return float(
        brentq(excess, 0.0, math.log1p(-wrong) - math.log(wrong) + TOLERANCE, xtol=TOLERANCE)
    )


def _largest(rejects) -> float:
    """Largest mu >= 0 that is rejected, to 1e-7; 0 if none."""
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while rejects(high):
        low, high = high, 2 * high
    while high - low > 1e-7:
        low, high = (mid, high) if rejects(mid := (low + high) / 2) else (low, mid)
    return low


def _fdp_rejects(m, r, v, alpha):
    """F is convex, so that no later step of a is longer than i / (r - i) F'(limit - b) times the one
    before it. Once the sum of all that may come cannot reach the limit, the rest is left out."""
    share = alpha * r / m
    quantile, erfc, root, limit = NormalDist().inv_cdf, math.erfc, math.sqrt(0.5), r / m

    def rejects(mu: float) -> bool:
        a, b = share * v / r, share * (r - v) / r
        for i in range(v - 1, -1, -1):
            reached = 0.5 * erfc((mu - quantile(a)) * root)
            if reached <= b:  # a no longer moves, and b with it
                break
            step = i / (r - i) * (reached - b)
            a, b = a + step, reached
            if a + b > limit:  # both only grow
                return True
            if i % 256 == 0:
                slope = math.exp(mu * quantile(min(limit - b, TOP)) - mu * mu / 2)
                shrink = i / (r - i) * slope
                if shrink < 1 and step * (slope + shrink) / (1 - shrink) < limit - a - b:
                    return False
        return a + b > limit

    return rejects


def _xiang(m, r, errors, alpha) -> float:
    """The expectation by Gauss-Legendre over all but 1e-13 of the Beta law of the guessed share of |O|."""
    if errors == r:
        return 0.0
    share, weight = np.ones(1), np.ones(1)
    if m > r:
        low, high = betaincinv(r + 1, m - r, 1e-13), betaincinv(r + 1, m - r, 1 - 1e-13)
        share = (low + high) / 2 + (high - low) / 2 * NODES[0]
        mean = (r + 1) / (m + 1)  # relative to it: r times the logarithm of a share loses digits
        above, below = np.log1p((share - mean) / mean), np.log1p((mean - share) / (1 - mean))
        log_density = r * above + (m - r - 1) * below
        weight = NODES[1] * np.exp(log_density - log_density.max())
        weight /= weight.sum()

    def probability(mu: float) -> float:
        x, c = _cut(share, mu / 2), mu / 2
        wrong = ndtr(-x - c) / (ndtr(-x - c) + ndtr(-x + c))
        return float(weight @ betaincc(errors + 1, r - errors, wrong))

    if probability(0.0) >= alpha:
        return 0.0
    from scipy.optimize import brentq

    high = 1.0
    while probability(high) < alpha:
        high *= 2
    return float(brentq(lambda mu: probability(mu) - alpha, 0.0, high, xtol=1e-10))


def _cut(share, c) -> np.ndarray:
    """x with P[|N(c, 1)| > x] = share, by bisection."""
    low, high = np.zeros_like(share), c - ndtri(share / 2)
    for _ in range(60):
        mid = (low + high) / 2
        above = ndtr(-mid + c) + ndtr(-mid - c) > share
        low, high = np.where(above, mid, low), np.where(above, high, mid)
    return (low + high) / 2


@checked
def one_run(
    score,
    member,
    *,
    delta: float,
    guesses: int | None = None,
    confidence: float = 0.95,
    method: str = "steinke",
    seed: int = 0,
) -> OneRun:
    """Audit of one training run: scores (m,) of its canaries, and the coins `member` (m,) that included them.

    The ceil(r/2) highest scores are guessed IN, the floor(r/2) lowest OUT, and `one_run_epsilon` turns the number of correct
    guesses into a bound. guesses=None: of 1, 5, 25 and 100 % of m the numbers that would certify anything if all were right,
    each at alpha / (how many these are), and the largest bound; of equal ones that of most guesses.
    Ties are broken by a permutation of the canaries drawn with `seed`, without a look at `member`.
    Scores may use whatever is independent of the canaries' own coins, the bits and outputs of other models included: they
    leave those coins fair. They may not use the target's own bits, not even to pick a threshold, an attack or its options.
    Canaries scored NaN, because other models' coins left them no references on one side, are left out and counted in
    `left_out`; that they were says nothing about the target's coins.
    Raises ValueError for shapes that differ, members other than 0 and 1, no scored canary, and more guesses than canaries, or
    half of one. Caveat: whether coins were
    fair and independent cannot be seen here (`check_bernoulli` recognises exact halves in a whole mask).
    """
    check_level(confidence, delta)
    score, member, seed = reals("scores", score), mask("members", member), whole("seed", seed, 0)
    if score.ndim != 1 or score.shape != member.shape:
        raise ValueError(
            f"scores {score.shape} and members {member.shape}: wanted two equal vectors, one run at a time"
        )
    known = ~np.isnan(score)
    m = int(known.sum())
    if not m:
        raise ValueError(
            f"none of {len(score)} canaries has a score (all NaN): score them with references on both sides"
        )
    if guesses is not None and not whole("guesses", guesses) <= m:
        raise ValueError(f"guesses={guesses}: wanted 1 to {m}, the number of scored canaries")
    order = np.random.default_rng(seed).permutation(m)
    order = order[np.argsort(score[known][order], kind="stable")]
    ranked = member[known][order]  # lowest score first
    numbers = (
        numbers_tried(m, 1 - confidence, delta, method) if guesses is None else (int(guesses),)
    )
    alpha, found = (1 - confidence) / len(numbers), []
    for r in numbers:
        correct = int(ranked[m - (r + 1) // 2 :].sum() + (~ranked[: r // 2]).sum())
        bound = one_run_epsilon(
            canaries=m, guesses=r, correct=correct, delta=delta, confidence=1 - alpha, method=method
        )
        found.append((bound, r, correct))
    epsilon, r, correct = max(found)
    words, lost = (LABELS[method], CONDITIONS[method]), len(score) - m
    return OneRun(epsilon, r, correct, m, delta, confidence, method, *words, alpha, numbers, lost)


@lru_cache(256)
def numbers_tried(
    canaries: int, alpha: float, delta: float, method: str = "steinke"
) -> tuple[int, ...]:
    """Numbers of guesses among which the largest bound at level alpha is taken: no look at scores or coins.

    Those of GRID, from the smallest on without the ones that at alpha / (numbers left) certify nothing even if all are right:
    they could only make the others pay. All canaries are always one.
    """
    numbers = tuple(dict.fromkeys(max(1, round(share * canaries)) for share in GRID))
    while len(numbers) > 1:
        level, least = 1 - alpha / len(numbers), numbers[0]
        about = {"canaries": canaries, "guesses": least, "correct": least, "delta": delta}
        if one_run_epsilon(**about, confidence=level, method=method) > 0:
            break
        numbers = numbers[1:]
    return numbers


@checked
def check_bernoulli(member) -> None:
    """ValueError if a mask (M, N), or (N,) of one model, was visibly not drawn by independent fair coins.

    Refused: rows that are equal or complementary (pairs), the same number of members in every row up to one (exact halves,
    also within strata), numbers of models per sample that vary less or more than coins let them (balanced designs, fixed
    samples), and shares of members far from 1/2. Each check refuses true coins with a probability of about 1e-4 at most.
    Caveat: the exact half of a single row of few samples cannot be told from a coin's, and nothing here sees dependence
    between samples, duplicates for example: that the coins were independent is for whoever drew them to say.
    """
    member = np.atleast_2d(mask("member", member))
    models, samples = member.shape
    if samples < 2:
        raise ValueError(
            f"member has {samples} columns: coins cannot be judged on less than 2 samples"
        )
    advice = "a one-run audit needs independent fair coins; train the pool with split='bernoulli'"
    if models > 1 and samples > math.log2(models**2 / CHANCE):
        canonical = {(row ^ row[0]).tobytes() for row in member}
        if len(canonical) < models:
            raise ValueError(
                f"{models - len(canonical)} of {models} masks equal another or its complement (pairs): {advice}"
            )
    sums = member.sum(1)
    off = int(np.abs(2 * sums - samples).max())
    most = (samples + off) // 2
    near = float(bdtr(most, samples, 0.5) - bdtrc(most, samples, 0.5))
    if models * math.log(max(near, 1e-300)) < math.log(HALVES):
        raise ValueError(
            f"all {models} masks have {sums.min()} to {sums.max()} members of {samples} (exact halves): {advice}"
        )
    if bdtr(min(sums.sum(), member.size - sums.sum()), member.size, 0.5) < CHANCE / 2:
        raise ValueError(
            f"{sums.sum() / member.size:.1%} of the mask are members, too far from one half: {advice}"
        )
    if models > 1:
        spread = float(((member.sum(0) - models / 2) ** 2).sum() / (models / 4))
        if min(chdtr(samples, spread), chdtrc(samples, spread)) < CHANCE / 2:
            raise ValueError(
                f"the number of models that saw a sample varies {spread / samples:.2f} times as much as with coins: {advice}"
            )


@checked
def apart(attack, signals: Signals) -> Scores:
    """The first half of the models scored with the others as references, so that `audit` takes all targets together.

    No target is then another's reference. With fewer than 4 models every one is scored against the others (`attacks.score`),
    and audited alone. What it buys: half of the references are given up for several times the guesses at a larger alpha.
    """
    models = signals.shape[0]
    if models < FEWEST_APART:
        return run_attack(attack, signals)
    return run_attack(
        attack,
        signals.select(models=slice(models // 2)),
        signals.select(models=slice(models // 2, None)),
    )


@checked
def audit(
    scores: Scores,
    *,
    delta: float,
    confidence: float = 0.95,
    method: str = "steinke",
    attempts: int = 1,
    guesses: int | None = None,
    canary=None,
    seed: int = 0,
) -> Audit:
    """The targets of a Bernoulli pool audited: together where none was another's reference (`apart`), else one by one.

    All records are canaries, or the columns `canary` (N,) bool alone. `attempts`: how many attacks, and options of attacks,
    were tried on these targets before this one was picked; leave none out. guesses=None divides alpha again (`one_run`).
    together    all coins of all targets are the canaries of one audit at alpha / attempts. Trainings that share no randomness
                are one mechanism; a coin moves one of them only, so that it is as (epsilon, delta)-DP as each is.
    one by one  each target is a run of its own at alpha / (targets * attempts), and the largest bound counts. Scores may use
                the other models' coins: given those and the other models' outputs, the target's own are fair and independent.
                They may not be added up: where each guess looks at the others' coins, all can be right or wrong together.
    In neither case may a target's own bits enter: its score on one canary must not know whether another was in.
    Raises ValueError where the mask is visibly no coin design (`check_bernoulli`) or the scores' info says that members were
    drawn in pairs (two rows of different pairs do not show it), and for attempts that are no whole number from 1 on.
    The claim that is tested concerns the whole training, whichever target shows it. Caveat: that trainings shared no seed,
    noise or batches is for whoever ran them to say; pools trained here share none.
    """
    instance("scores", scores, Scores), whole("attempts", attempts)
    if scores.info.get("split") == "pairs":
        raise ValueError(
            "members were drawn in pairs (split='pairs'): a one-run audit needs independent fair coins"
        )
    check_level(confidence, delta)
    columns = np.ones(scores.value.shape[1], bool) if canary is None else mask("canary", canary)
    if columns.shape != scores.value.shape[1:] or not columns.any():
        raise ValueError(
            f"canary has shape {columns.shape}; wanted ({scores.value.shape[1]},) with one canary or more"
        )
    value, member = scores.value[:, columns], scores.member[:, columns]
    check_bernoulli(member)
    targets = np.asarray(scores.targets, dtype=int)
    how = {"delta": delta, "guesses": guesses, "method": method, "seed": seed}
    together = bool(scores.info.get("disjoint")) and len(targets) > 1
    if together:
        best, at = (
            one_run(
                value.ravel(), member.ravel(), confidence=1 - (1 - confidence) / attempts, **how
            ),
            None,
        )
        lost = np.isnan(value).sum(1)
        table = pd.DataFrame(
            {"target": targets, "canaries": value.shape[1] - lost, "left_out": lost}
        )
    else:
        each = 1 - (1 - confidence) / (len(targets) * attempts)
        runs = [
            one_run(v, who, confidence=each, **how) for v, who in zip(value, member, strict=True)
        ]
        table = pd.DataFrame(runs)[
            ["epsilon", "canaries", "guesses", "correct", "alpha", "left_out"]
        ]
        table.insert(0, "target", targets)
        at = int(table["epsilon"].argmax())
        best = runs[at]
    return Audit(
        epsilon=best.epsilon,
        target=int(targets[at]) if at is not None else None,
        runs=len(targets) if together else 1,
        canaries=best.canaries,
        guesses=best.guesses,
        correct=best.correct,
        alpha=best.alpha,
        delta=delta,
        confidence=confidence,
        method=method,
        label=best.label,
        conditions=f"{best.conditions}; {SEPARATE}" if together else best.conditions,
        attack=str(scores.info.get("attack", "unnamed")),
        attempts=attempts,
        tried=best.tried,
        targets=table,
    )
