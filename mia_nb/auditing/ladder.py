"""Five numbers that are all written epsilon, in one table: what each is about, and whether an audit
contradicts it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import pandas as pd

from mia_nb import accounting
from mia_nb.arguments import Delta
from mia_nb.auditing.one_run import Audit
from mia_nb.checks import checked, one_of

LABELS = (
    "nominal (paper's accounting)",
    "paper's theorem with measured L",
    "release bound",
    "training guarantee",
    "audited lower bound",
)
NOTES = (
    "assumes T*L <= 1 and private gradients; not a guarantee",
    "paper's formula; shown outside its domain if eps >= 1; not a guarantee",
    "local DP of the queried input's hidden state, per query; says nothing about training",
    "the only row that may be called a guarantee for the training set",
    "at least this, 95 % confidence",
)
NO_NOISE = "not applicable (no noise in the network)"
INFINITE = "none (infinite)"
RECORD = "add/remove one record"
REPLACED = "replace one record"
# reasons why no audit tests a row
ONLY_CERTIFIED = (
    "not tested by row 5: it takes Corollary 1 at an L that bounds the drift throughout training"
)
OF_QUERIES = "not tested by row 5: it concerns the queried input"
OF_REPLACING = "not tested by row 5, whose coins add records"
COVERED = ("euler", "rk4")


class Row(NamedTuple):
    """One of the five: what to print, what it is about, and how it was computed.

    claim: the number that it claims for the training, or None. untested: why no audit tests that
    claim. note: to print under the table, in place of the usual one.
    """

    shown: str
    relation: str
    epsilon: float = math.nan
    claim: float | None = None
    untested: str = ""
    method: str = ""
    note: str = ""
    remarks: Sequence[str] = ()


@checked
def ladder(
    *,
    delta: Delta,
    flow: dict | None = None,
    nominal: dict | None = None,
    lipschitz: dict | None = None,
    release: dict | None = None,
    dp_sgd: dict | None = None,
    stored: dict | None = None,
    audited: Audit | None = None,
    accountant: str = "prv",
    sampling: str = "poisson",
) -> pd.DataFrame:
    """Five different epsilons at one delta, a row each. The first four are about different things
    and do not bound each other; the fifth is a lower bound, and refutes row 1, 2 or 4 where it
    exceeds it.

    Rows:
        1 nominal (paper's accounting): `accounting.epsilon` with noise_multiplier = sigma = k
            sqrt(steps / T), as in the experiments of Hong, Wu, Gruber and Lee (arXiv 2501.06686);
            accountant="gdp", sampling="uniform" to follow their figure.
        2 paper's theorem with measured L: their Theorem 1 at the certified L, and ">=" at the local
            L; Corollary 1 for all steps.
        3 release bound: exact Gaussian epsilon of `accounting.release_mu`, for `queries` outputs on
            one input.
        4 training guarantee: DP-SGD's accountant (PRV; RDP if asked for), or that of stored
            features, else infinite.
        5 audited lower bound: what the audit found, and what it could have reached at most.

    Parameters:
        delta: in [0, 1), of all rows.
        flow: {"k", "steps", "T", "method"}, as `models.neural_de.describe` gives them; noise_train,
            noise_eval, clip, order and lipschitz are heeded where present. None for a network
            without a differential equation.
        nominal: {"sample_rate", "steps"} of the training.
        lipschitz: {"certified": L or None, "local": L or None, "distance" of states that enter}.
        release: {"queries"} on one input; None: 1. The clip is that of `flow`.
        dp_sgd: {"noise_multiplier", "sample_rate", "steps", "trials"}; row 4 is the sum over that
            many equal trainings, and an audit is compared with one of them.
        stored: {"releases", "keep", "classes", "relation"}, as `training.proved(pool).stored` gives
            them: stem and drift frozen and trained on public data alone; the noisy state of every
            record drawn `releases` times and kept, its label by randomised response, and only that
            trained on. State and label are composed exactly (`accounting.stored_epsilon`). With
            fresh noise in every epoch the epochs are releases. relation is "replace", or
            "add/remove" where empty slots hide how many records there are.
        audited: the record of `audit` or `one_run`.
        accountant: prv, rdp or gdp.
        sampling: of row 1's batches, poisson or uniform.

    Returns:
        columns row, label, shown (what to print), epsilon (inf; NaN where there is none), delta,
        relation, method, note (to print under the table), verdict (of row 5 on this row), remark
        (domain, assumptions seen to fail).

    An audit above rows 1, 2 (Corollary 1 at an L that bounds the drift by construction, throughout
    training) or 4 (DP-SGD, one training) refutes them. An audit below says nothing, least of all
    where even perfect guesses could not have come above. Rows 2 (Theorem 1) and 3 concern a hidden
    state, which no audit of the training tests.

    Raises:
        ValueError: for incomplete or unknown arguments, a local L above the certified one, and an
            audit at another delta.
    """
    for name, arguments, wanted, optional in (
        ("flow", flow, ("k", "steps", "T", "method"), None),
        ("nominal", nominal, ("sample_rate", "steps"), ()),
        ("dp_sgd", dp_sgd, ("noise_multiplier", "sample_rate", "steps"), ("trials",)),
        ("lipschitz", lipschitz, (), ("certified", "local", "distance")),
        ("release", release, ("queries",), ()),
        ("stored", stored, ("releases", "keep", "classes", "relation"), ()),
    ):
        if arguments is not None:
            _complete(name, arguments, wanted, optional)
    if dp_sgd is not None and stored is not None:
        raise ValueError("dp_sgd and stored are two ways to train: a network has one of them")
    if audited is not None and audited.delta != delta:
        raise ValueError(
            f"audited holds at delta={audited.delta}, the ladder at delta={delta}: audit again at"
            " this delta"
        )
    bounds = _bounds(flow, lipschitz)
    one_of("accountant", accountant, ("prv", "rdp", "gdp"))
    if stored is None:
        of_training = _training(flow, dp_sgd, delta, accountant)
    else:
        of_training = _stored(flow, bounds, stored, delta)
    rows = [
        _nominal(flow, nominal, bounds, delta, accountant, sampling),
        _theorem(flow, nominal, bounds, delta),
        _release(flow, bounds, release, delta),
        of_training,
        _audited(audited),
    ]
    table = []
    for i, row in enumerate(rows):
        table.append(
            {
                "row": i + 1,
                "label": LABELS[i],
                "shown": row.shown,
                "epsilon": row.epsilon,
                "delta": delta,
                "relation": row.relation,
                "method": row.method,
                "note": row.note or NOTES[i],
                "verdict": _verdict(row, audited),
                "remark": "; ".join(row.remarks),
            }
        )
    return pd.DataFrame(table)


def _bounds(flow: dict | None, lipschitz: dict | None) -> dict[str, float | None]:
    """The certified and the local L of the drift, and the distance of states that enter; None where
    not known.
    """
    bounds = {"certified": (flow or {}).get("lipschitz"), "local": None, "distance": None}
    bounds |= lipschitz or {}
    for name, value in bounds.items():
        if value is not None and math.isnan(value):
            bounds[name] = None  # a drift of second order has no certified L
    certified = bounds["certified"]
    local = bounds["local"]
    if certified is not None and local is not None and local > certified * (1 + 1e-6):
        raise ValueError(
            f"a local L of {local:.4g} refutes the certified {certified:.4g}: measure again"
        )
    return bounds


def _complete(
    name: str, given: dict, wanted: tuple[str, ...], optional: tuple[str, ...] | None
) -> None:
    """ValueError unless `given` has all of `wanted` and nothing besides except `optional` (None:
    anything).
    """
    known = dict.fromkeys((*wanted, *(given if optional is None else optional)))
    missing = ", ".join(key for key in wanted if given.get(key) is None)
    unknown = ", ".join(repr(key) for key in given if key not in known)
    if missing:
        raise ValueError(f"{name} lacks {missing}: wanted a dict with {', '.join(wanted)}")
    if unknown:
        raise ValueError(f"{name} has no {unknown}: wanted a dict with {', '.join(known)}")


def _silent(flow: dict | None) -> str:
    """Why rows 1 and 2 have no number; "" if they have one."""
    if flow is None or flow["k"] == 0:
        return NO_NOISE
    if not flow.get("noise_train", True):
        return "not applicable (no noise in training)"
    return ""


def _nominal(
    flow: dict | None,
    nominal: dict | None,
    bounds: dict,
    delta: float,
    accountant: str,
    sampling: str,
) -> Row:
    silent = _silent(flow)
    if silent or nominal is None:
        return Row(silent or "not given: needs sample_rate and steps of the training", RECORD)
    sigma = accounting.nsde_sigma(k=flow["k"], steps=flow["steps"], T=flow["T"])
    rate = nominal["sample_rate"]
    steps = nominal["steps"]
    epsilon = accounting.epsilon(
        noise_multiplier=sigma,
        sample_rate=rate,
        steps=steps,
        delta=delta,
        accountant=accountant,
        sampling=sampling,
    )
    limit = f" ({sampling}), a central limit approximation" if accountant == "gdp" else ""
    remarks = []
    if flow["T"] < 1:
        remarks.append(f"T = {flow['T']:g}: the tabulated sigma exceeds the theorem's by 1/sqrt T")
    times_L = flow["T"] * (bounds["local"] or 0)
    if times_L > 1:
        remarks.append(
            f"T*L >= {times_L:.3g} at the local L: the assumption T*L <= 1 does not hold"
        )
    remarks.append(
        "noise on activations is no noise on clipped gradients; the accountant assumes secret"
        " Poisson batches"
    )
    return Row(
        number(epsilon),
        RECORD,
        epsilon=epsilon,
        claim=epsilon,
        method=(
            f"{accountant.upper()} accountant{limit}, noise multiplier sigma = {sigma:.4g},"
            f" q = {rate:.4g}, {steps:,} steps"
        ),
        remarks=remarks,
    )


def _theorem(flow: dict | None, nominal: dict | None, bounds: dict, delta: float) -> Row:
    relation = "hidden states at distance <= 1 (Theorem 1)"
    known = {name: bounds[name] for name in ("certified", "local") if bounds[name] is not None}
    silent = _silent(flow)
    if silent or not known:
        return Row(silent or "not given: needs a certified or a local Lipschitz constant", relation)
    noise_sd = accounting.noise_sd(k=flow["k"], steps=flow["steps"])
    theorem = {}
    for name, L in known.items():
        theorem[name] = accounting.theorem_epsilon(
            noise_sd=noise_sd, T=flow["T"], lipschitz=L, delta=delta
        )
    constants = ", ".join(f"{name} L = {L:.4g}" for name, L in known.items())
    method = f"Theorem 1, noise_sd = {noise_sd:.4g}, {constants}"

    corollary = {}  # over all steps of the training
    if nominal is not None and delta:
        steps = nominal["steps"]
        for name, L in known.items():
            corollary[name] = accounting.corollary_epsilon(
                noise_sd=noise_sd,
                T=flow["T"],
                lipschitz=L,
                iterations=steps,
                delta=delta / (2 * steps),
                delta_prime=delta / 2,
            )
        values = ", ".join(_at(corollary))
        method += f"; Corollary 1 over {steps:,} steps, total delta split evenly: {values}"

    built = flow.get("lipschitz") is not None  # by its construction, throughout training
    claim = corollary.get("certified") if built else None
    remarks = []
    if max([*theorem.values(), *corollary.values()]) >= 1:
        remarks.append("stated for eps < 1: outside its domain")
    if corollary and not built:
        remarks.append(
            "L of the weights at the end; the corollary takes the largest during training"
        )
    distance = bounds["distance"] or 0
    if distance > 1:
        remarks.append(
            f"states that enter lie up to {distance:.3g} apart; the theorem takes 1 at most"
        )
    return Row(
        "; ".join(_at(theorem)),
        relation,
        epsilon=next(iter(theorem.values())),  # at the certified L where there is one
        claim=claim,
        untested=ONLY_CERTIFIED if claim is None else "",
        method=method,
        remarks=remarks,
    )


def _at(epsilons: dict[str, float]) -> list[str]:
    """Epsilons at the Lipschitz constants of these names, in words."""
    text = {"certified": "{} (certified L)", "local": ">= {} (at the local L)"}
    return [text[name].format(number(epsilon)) for name, epsilon in epsilons.items()]


def _release(flow: dict | None, bounds: dict, release: dict | None, delta: float) -> Row:
    relation = "any two inputs, one at a time"
    if flow is None or flow["k"] == 0:
        return Row(NO_NOISE, relation)
    if not flow.get("noise_eval", True):
        off = ["noise is off at inference"]
        return Row(INFINITE, relation, epsilon=math.inf, untested=OF_QUERIES, remarks=off)
    clip = flow.get("clip")
    if clip is None or bounds["certified"] is None:
        return Row("not given: needs clipped h0 (clip=C) and a certified L", relation)
    if not _covered(flow):
        came = f"{flow['method']}, order {flow.get('order', 1)}"
        return Row(f"not covered ({came}): wanted euler or rk4, order 1", relation)
    queries = 1 if release is None else release["queries"]
    mu, constants = _mu(flow, bounds, clip, queries)
    epsilon = accounting.gaussian_epsilon(mu, delta)
    over = f" over {queries} queries" if queries > 1 else ""
    return Row(
        number(epsilon, up=True) + (over if math.isfinite(epsilon) else ""),
        relation,
        epsilon=epsilon,
        untested=OF_QUERIES,
        method=f"exact Gaussian formula, mu = {mu:.4g}, {flow['method']}, {constants}{over}",
        remarks=[
            "assumes noise that is independent and on at inference, h0 that depends on no other"
            " record (no batch norm in train mode), fixed parameters"
        ],
    )


def _covered(flow: dict) -> bool:
    return flow["method"] in COVERED and flow.get("order", 1) == 1


def _mu(flow: dict, bounds: dict, clip: float, queries: int) -> tuple[float, str]:
    """mu of this number of releases, and the constants that it rests on, in words."""
    L = bounds["certified"]
    mu = accounting.release_mu(
        k=flow["k"],
        steps=flow["steps"],
        T=flow["T"],
        scheme=flow["method"],
        lipschitz=L,
        clip=clip,
        queries=queries,
    )
    return mu, f"Delta = {2 * clip:.4g}, certified L = {L:.4g}"


def _stored(flow: dict | None, bounds: dict, stored: dict | None, delta: float) -> Row:
    """Row 4 of a training on stored features: finite only where every condition of the release
    bound holds.
    """
    clip = (flow or {}).get("clip")
    releases = stored["releases"]
    relation = one_of("relation", stored["relation"], accounting.RELATIONS)
    label = {"keep": stored["keep"], "classes": stored["classes"]}
    lacks = {
        "noise in the network": flow is None or flow["k"] == 0,
        "clipped h0 (clip=C)": clip is None,
        "a certified L": bounds["certified"] is None,
        "euler or rk4 of order 1": flow is not None and not _covered(flow),
        "privatised labels": stored["keep"] == 1,
    }
    missing = [condition for condition, is_missing in lacks.items() if is_missing]
    if missing:
        method = f"stored features, without {', '.join(missing)}"
        return Row(INFINITE, REPLACED, epsilon=math.inf, claim=math.inf, method=method)
    added = relation == "add/remove"
    # a record is at most clip away from an empty slot, and 2 clip from another record
    mu, constants = _mu(flow, bounds, clip / 2 if added else clip, releases)
    epsilon = accounting.stored_epsilon(mu=mu, delta=delta, relation=relation, **label)
    remarks = [
        "assumes stem and drift frozen and trained on public data alone, noise drawn once a"
        " release and kept secret, no batch norm in train mode, nothing else that reads the"
        " records; releases of all models that are shown count"
    ]
    if added:
        remarks.append("empty slots hide the number of records")
    return Row(
        number(epsilon, up=True),
        RECORD if added else REPLACED,
        epsilon=epsilon,
        claim=epsilon if added else None,
        untested="" if added else OF_REPLACING,
        method=(
            f"stored features, exact Gaussian formula, mu = {mu:.4g}, {constants}, {releases:,}"
            f" releases, labels by randomised response of epsilon"
            f" {accounting.response_epsilon(**label):.4g}, composed exactly"
        ),
        remarks=remarks,
    )


def _training(flow: dict | None, dp_sgd: dict | None, delta: float, accountant: str) -> Row:
    if dp_sgd is None:
        method = "not trained with DP-SGD"
        return Row(INFINITE, RECORD, epsilon=math.inf, claim=math.inf, method=method)
    trials = dp_sgd.get("trials", 1)
    if trials < 1:
        raise ValueError(
            f"dp_sgd has trials={trials}: wanted the trainings on these records, the last"
            " included: 1 or more"
        )
    used = "rdp" if accountant == "rdp" else "prv"
    noise = dp_sgd["noise_multiplier"]
    rate = dp_sgd["sample_rate"]
    steps = dp_sgd["steps"]
    setting = {"noise_multiplier": noise, "sample_rate": rate, "delta": delta, "accountant": used}
    last = accounting.epsilon(**setting, steps=steps)
    epsilon = last
    method = (
        f"DP-SGD, {used.upper()} accountant, noise multiplier {noise:.4g}, q = {rate:.4g},"
        f" {steps:,} steps"
    )
    if trials > 1:
        epsilon = accounting.epsilon(**setting, steps=steps * trials)
        method += f", {trials} trainings, all counted as the last (one: {number(last, up=True)})"
    remarks = [
        "holds for the weights, with clipped per-sample gradients, Poisson batches and a secret"
        " seed"
    ]
    if flow is not None and flow["k"] > 0:
        remarks.append("the network's noise adds nothing")
    return Row(
        number(epsilon, up=True),
        RECORD,
        epsilon=epsilon,
        claim=last,
        method=method,
        remarks=remarks,
    )


def _audited(audited: Audit | None) -> Row:
    if audited is None:
        return Row("not audited", RECORD)
    shown = f"{audited.label} {number(audited.epsilon, up=False)}" if audited.epsilon > 0 else "0"
    runs = f"{audited.runs} runs together" if audited.runs > 1 else "one run"
    attack = f", {audited.attack}" if audited.attack else ""
    doubt = f"conditions: {audited.conditions}; a small bound is no evidence that little leaks"
    return Row(
        shown,
        RECORD,
        epsilon=float(audited.epsilon),
        method=(
            f"{audited.method}, {runs}, m = {audited.canaries:,}, r = {audited.guesses:,},"
            f" v = {audited.correct:,}, alpha = {audited.alpha:.3g}{attack}; at most"
            f" {number(audited.at_most, up=False)} had every guess been right"
        ),
        note=NOTES[4].replace("95 %", f"{100 * audited.confidence:g} %"),
        remarks=[doubt],
    )


def _verdict(row: Row, audited: Audit | None) -> str:
    """The verdict of row 5 on the number that a row claims for the training."""
    if audited is None or (row.claim is None and not row.untested):
        return ""
    if math.isinf(row.epsilon) and row.untested != OF_QUERIES:
        return "nothing claimed"
    if row.untested:
        return row.untested
    if audited.epsilon > row.claim:
        return f"refuted at {100 * audited.confidence:g} % by row 5"
    most = audited.at_most
    if most <= row.claim:
        return f"row 5 could not have exceeded it (at most {number(most, up=False)})"
    return "no attack found that exceeds it"


def number(epsilon: float, *, up: bool | None = None) -> str:
    """An epsilon for print: three digits, rounded up if it is an upper bound and down if it is a
    lower one; "none (infinite)" for inf.
    """
    if math.isinf(epsilon):
        return INFINITE
    if up is not None and epsilon > 0:
        unit = max(10.0 ** (math.floor(math.log10(epsilon)) - 2), 1e-12)  # of the third digit
        digits = math.ceil(epsilon / unit - 1e-9) if up else math.floor(epsilon / unit)
        epsilon = digits * unit
    return f"{epsilon:,.0f}" if epsilon >= 999.5 else f"{epsilon:.3g}"
