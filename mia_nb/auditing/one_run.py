"""Lower bounds on epsilon from one or several training runs whose canaries were included by fair
coins.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from scipy.special import betaincc, betainccinv, expit

from mia_nb.arguments import Anything, Count, Delta, Level, Mask, Numbers, Positive
from mia_nb.attacks import score as run_attack
from mia_nb.auditing.coins import check_bernoulli
from mia_nb.checks import checked
from mia_nb.types import Scores, Signals

GRID = (0.01, 0.05, 0.25, 1.0)  # shares of the canaries to guess when no number is given
TOLERANCE = 1e-9
MOST = 10**10  # canaries
FEWEST_SPLIT = 4  # models: with fewer, half of them leave one reference
CONDITIONS = "each canary included by its own fair coin; holds for any (epsilon, delta)-DP training"


class Audit(NamedTuple):
    """A lower bound at `delta` for one record added or removed: `epsilon` from `correct` of
    `guesses` on `canaries`.

    It is from one run (`one_run`), from all targets together (`runs` of them, `target` None), or
    the best of the targets' own bounds (`audit`).
    """

    epsilon: float
    target: int | None  # row in the target pool, None of several together
    runs: int
    canaries: int
    guesses: int
    correct: int
    alpha: float  # of the test behind the bound, divided by the number of bounds to choose from
    delta: float
    confidence: float
    method: str
    label: str
    conditions: str
    attack: str | None  # the name in the scores' info
    attempts: int
    tried: tuple[int, ...]  # numbers of guesses

    @property
    def at_most(self) -> float:
        """The bound if every guess were right: a larger claim could not have been exceeded."""
        level = 1 - self.alpha
        return max(perfect_epsilon(self.canaries, r, self.delta, level) for r in self.tried)


@checked
def one_run_epsilon(
    *,
    canaries: Count,
    guesses: Count,
    correct: Count,
    delta: Delta,
    confidence: Level = 0.95,
) -> float:
    """Lower bound on epsilon at delta from v = `correct` of r = `guesses` on m = `canaries`.

    Parameters:
        canaries: m, at most 10^10.
        guesses: r, 1 to m.
        correct: v, 0 to r.
        delta: in [0, 1).
        confidence: 1 - alpha, in (0, 1).

    For any (epsilon, delta)-DP training. With q = 1 / (1 + e^-eps) and S(j) = P[Bin(r, q) >= j],
    the bound is sup{eps : p(eps) < alpha} (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846)

        p(eps) = S(v) + 2 m delta max_{1<=i<=v} (S(v-i) - S(v)) / i

    Raises ValueError unless 0 <= correct <= guesses <= canaries <= 10^10 are whole numbers and
    guesses >= 1. Caveat: a small bound is evidence of nothing; audits in one run are tight only if
    canaries do not interfere (Keinan, Shenfeld and Ligett 2025).
    """
    if not (correct <= guesses <= canaries and guesses >= 1):
        raise ValueError(
            f"correct={correct}, guesses={guesses}, canaries={canaries}: wanted whole numbers,"
            " correct <= guesses <= canaries and a guess"
        )
    if canaries > MOST:
        raise ValueError(f"canaries={canaries}: wanted at most {MOST:,}; audit a part of them")
    return _steinke(canaries, guesses, correct, delta, 1 - confidence)


def _steinke(m: int, r: int, v: int, delta: float, alpha: float) -> float:
    """The bound of `one_run_epsilon`, in its symbols.

    (S(v-i) - S(v)) / i is a mean of the pmf over the i values below v. The pmf has one peak, so
    that the means rise until one exceeds the next value of the pmf, and fall from there: bisection
    finds the largest.
    """

    def excess(epsilon: float) -> float:
        """p(epsilon) - alpha."""
        wrong = expit(-epsilon)

        def at_least(j: int) -> float:
            """S(j)."""
            return betaincc(r - j + 1, j, wrong) if j else 1.0

        tail = at_least(v)
        if delta == 0 or tail >= alpha:
            return tail - alpha

        def mean(i: int) -> float:
            return (at_least(v - i) - tail) / i

        def past_the_peak(i: int) -> bool:
            return at_least(v - i - 1) - at_least(v - i) < mean(i)

        best = 1 + bisect_left(range(1, v), True, key=past_the_peak)
        return tail + 2 * m * delta * mean(best) - alpha

    if v == 0 or excess(0.0) >= 0:
        return 0.0
    from scipy.optimize import brentq

    wrong = betainccinv(r - v + 1, v, alpha)
    at_delta_0 = math.log1p(-wrong) - math.log(wrong)
    return float(brentq(excess, 0.0, at_delta_0 + TOLERANCE, xtol=TOLERANCE))


@checked
def one_run(
    score: Numbers,
    member: Mask,
    *,
    delta: Delta,
    guesses: Positive | None = None,
    confidence: Level = 0.95,
    seed: Count = 0,
) -> Audit:
    """Audit of one training run: `one_run_epsilon` of the canaries guessed IN and OUT by score.

    Parameters:
        score: (m,) of the canaries, larger = more likely a member; NaN is left out.
        member: (m,) bool, the fair coins that included them.
        delta: in [0, 1).
        guesses: r, from 1 to the number of scored canaries: the ceil(r/2) highest are guessed
            IN, the floor(r/2) lowest OUT. None: 1, 5, 25 and 100 % of m are tried, except numbers
            that certify nothing even if all guesses are right, each at alpha / (number tried); the
            largest bound is taken, of equal ones that of most guesses.
        confidence: 1 - alpha, in (0, 1).
        seed: of the permutation that breaks ties, which does not depend on `member`.

    Scores may use anything independent of the canaries' own coins, such as the membership and
    outputs of other models. They may not use the target's own membership, not even to choose a
    threshold, an attack or its options. Canaries scored NaN, because other models' coins left them
    no references on one side, say nothing about the target's coins. Raises ValueError for shapes
    that differ, members other than 0 and 1, no scored canary, and guesses that are more than the
    canaries or no whole number. Caveat: whether coins were fair and independent cannot be seen here
    (`check_bernoulli` recognises exact halves in a whole mask).
    """
    if score.ndim != 1 or score.shape != member.shape:
        raise ValueError(
            f"scores {score.shape} and members {member.shape}: wanted two equal vectors, one run at"
            " a time"
        )
    known = ~np.isnan(score)
    m = int(known.sum())
    if not m:
        raise ValueError(
            f"none of {len(score)} canaries has a score (all NaN): score them with references on"
            " both sides"
        )
    if guesses is not None and guesses > m:
        raise ValueError(f"guesses={guesses}: wanted 1 to {m}, the number of scored canaries")
    order = np.random.default_rng(seed).permutation(m)
    order = order[np.argsort(score[known][order], kind="stable")]
    ranked = member[known][order]  # lowest score first
    tried = (guesses,)
    if guesses is None:
        tried = numbers_tried(m, 1 - confidence, delta)
    alpha = (1 - confidence) / len(tried)
    bounds = []
    test = {"canaries": m, "delta": delta, "confidence": 1 - alpha}
    for r in tried:
        guessed_in = ranked[m - (r + 1) // 2 :]
        guessed_out = ranked[: r // 2]
        correct = int(guessed_in.sum() + (~guessed_out).sum())
        bounds.append((one_run_epsilon(guesses=r, correct=correct, **test), r, correct))
    epsilon, r, correct = max(bounds)
    return Audit(
        epsilon=epsilon,
        target=None,
        runs=1,
        canaries=m,
        guesses=r,
        correct=correct,
        alpha=alpha,
        delta=delta,
        confidence=confidence,
        method="steinke",
        label="at least",
        conditions=CONDITIONS,
        attack=None,
        attempts=1,
        tried=tried,
    )


@lru_cache(256)
def numbers_tried(canaries: int, alpha: float, delta: float) -> tuple[int, ...]:
    """The numbers of guesses whose largest bound is taken, chosen without scores or coins.

    They are the shares of GRID. From the smallest on, numbers are left out that certify nothing at
    alpha / (numbers left) even if all guesses are right, since they would only weaken the others.
    All canaries is always one of the numbers.
    """
    numbers = tuple(dict.fromkeys(max(1, round(share * canaries)) for share in GRID))
    while len(numbers) > 1:
        confidence = 1 - alpha / len(numbers)
        if perfect_epsilon(canaries, numbers[0], delta, confidence) > 0:
            break
        numbers = numbers[1:]
    return numbers


def perfect_epsilon(canaries: int, guesses: int, delta: float, confidence: float) -> float:
    """`one_run_epsilon` if every guess were right."""
    return one_run_epsilon(
        canaries=canaries, guesses=guesses, correct=guesses, delta=delta, confidence=confidence
    )


@checked
def score_split(attack: Anything, signals: Signals) -> Scores:
    """Scores of the first half of the models, the targets, with the other half as references, so
    that `audit` takes all targets together.

    Parameters:
        attack: a name of `attacks.ATTACKS`, or a function like those.
        signals: of M models, members drawn by coins.

    Returns:
        `Scores` of the targets.

    No target is then another's reference. It costs half of the references, and gives several times
    the guesses at a larger alpha. With fewer than 4 models each is scored against the others
    (`attacks.score`) and audited alone.
    """
    models = signals.shape[0]
    if models < FEWEST_SPLIT:
        return run_attack(attack, signals)
    targets = signals.select(models=slice(models // 2))
    references = signals.select(models=slice(models // 2, None))
    return run_attack(attack, targets, references)


@checked
def audit(
    scores: Scores,
    *,
    delta: Delta,
    confidence: Level = 0.95,
    attempts: Positive = 1,
    seed: Count = 0,
) -> Audit:
    """Audit of the targets of a Bernoulli pool: together where none was another's reference
    (`score_split`), else one by one.

    Parameters:
        scores: of the targets, members drawn by independent fair coins.
        delta: in [0, 1).
        confidence: 1 - alpha, in (0, 1).
        attempts: how many attacks, and options of attacks, were tried on these targets, this one
            included; leave none out.
        seed: of the permutation that breaks ties.

    Together: all coins of all targets are the canaries of one audit at alpha / attempts. Trainings
    that share no randomness are one mechanism; a coin changes only one of them, so that it is as
    (epsilon, delta)-DP as each is.

    One by one: each target is a run of its own at alpha / (targets * attempts), and the largest
    bound counts. Scores may use the other models' coins: given those and the other models' outputs,
    the target's coins are fair and independent. The guesses of several targets may not be added up:
    since each uses the others' coins, all can be right or wrong together.

    In neither case may scores use a target's own coins: its score on one canary must not depend on
    whether another was in. The claim tested concerns the whole training, whichever target shows it.

    Returns:
        An `Audit`: the bound and the numbers that it rests on.

    Raises:
        ValueError: where the mask is visibly no coin design (`check_bernoulli`) or the scores' info
            says that members were drawn in pairs (which two rows of different pairs do not show),
            and for attempts that are no whole number from 1 on.

    Caveat: it cannot be seen here whether trainings shared a seed, noise or batches; pools trained
    by this package do not.
    """
    if scores.info.get("split") == "pairs":
        raise ValueError(
            "members were drawn in pairs (split='pairs'): a one-run audit needs independent fair"
            " coins"
        )
    check_bernoulli(scores.member)
    targets = np.asarray(scores.targets, dtype=int)
    together = bool(scores.info.get("disjoint")) and len(targets) > 1
    if together:
        tests = [(scores.value.ravel(), scores.member.ravel())]
    else:
        tests = list(zip(scores.value, scores.member, strict=True))
    alpha = (1 - confidence) / (len(tests) * attempts)
    setting = {"delta": delta, "confidence": 1 - alpha, "seed": seed}
    runs = [one_run(value, coins, **setting) for value, coins in tests]
    best = int(np.argmax([run.epsilon for run in runs]))
    bound = runs[best]._replace(
        target=int(targets[best]),
        confidence=confidence,
        attack=str(scores.info.get("attack", "unnamed")),
        attempts=attempts,
    )
    if not together:
        return bound
    conditions = f"{CONDITIONS}; trainings that share no randomness"
    return bound._replace(target=None, runs=len(targets), conditions=conditions)
