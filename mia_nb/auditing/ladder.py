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
COVERED = ("euler", "rk4")  # solvers for which the release bound holds
NEEDED = {  # {argument of `ladder`: its entries}
    "flow": ("k", "steps", "T", "method"),
    "nominal": ("sample_rate", "steps"),
    "dp_sgd": ("noise_multiplier", "sample_rate", "steps"),
    "lipschitz": (),
    "release": ("queries",),
    "stored": ("releases", "keep", "classes", "relation"),
}
OPTIONAL = {"dp_sgd": ("trials",), "lipschitz": ("certified", "local", "distance")}


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
    given = {
        "flow": flow,
        "nominal": nominal,
        "dp_sgd": dp_sgd,
        "lipschitz": lipschitz,
        "release": release,
        "stored": stored,
    }
    for name, entries in given.items():
        if entries is not None:
            _refuse_entries(name, entries)
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
    for row, label, note in zip(rows, LABELS, NOTES, strict=True):
        table.append(
            {
                "row": len(table) + 1,
                "label": label,
                "shown": row.shown,
                "epsilon": row.epsilon,
                "delta": delta,
                "relation": row.relation,
                "method": row.method,
                "note": row.note or note,
                "verdict": _verdict(row, audited),
                "remark": "; ".join(row.remarks),
            }
        )
    return pd.DataFrame(table)


def _bounds(flow: dict | None, lipschitz: dict | None) -> dict[str, float | None]:
    """The certified and the local L of the drift, and the distance of states that enter; None where
    not known.
    """
    bounds = {"certified": None, "local": None, "distance": None}
    if flow is not None:
        bounds["certified"] = flow.get("lipschitz")
    bounds.update(lipschitz or {})
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


def _refuse_entries(name: str, entries: dict) -> None:
    """ValueError unless an argument has all entries that it needs, and no unknown ones; a flow may
    have any others.
    """
    needed = NEEDED[name]
    missing = [key for key in needed if entries.get(key) is None]
    if missing:
        raise ValueError(
            f"{name} lacks {', '.join(missing)}: wanted a dict with {', '.join(needed)}"
        )
    known = (*needed, *OPTIONAL.get(name, ()))
    unknown = [repr(key) for key in entries if key not in known]
    if unknown and name != "flow":
        raise ValueError(
            f"{name} has no {', '.join(unknown)}: wanted a dict with {', '.join(known)}"
        )


def _why_no_number(flow: dict | None) -> str:
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
    """Row 1."""
    reason = _why_no_number(flow)
    if nominal is None:
        reason = reason or "not given: needs sample_rate and steps of the training"
    if reason:
        return Row(reason, RECORD)
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
    accountant_words = f"{accountant.upper()} accountant"
    if accountant == "gdp":
        accountant_words += f" ({sampling}), a central limit approximation"
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
            f"{accountant_words}, noise multiplier sigma = {sigma:.4g}, q = {rate:.4g},"
            f" {steps:,} steps"
        ),
        remarks=remarks,
    )


def _theorem(flow: dict | None, nominal: dict | None, bounds: dict, delta: float) -> Row:
    """Row 2."""
    relation = "hidden states at distance <= 1 (Theorem 1)"
    constants = {name: bounds[name] for name in ("certified", "local") if bounds[name] is not None}
    reason = _why_no_number(flow)
    if not constants:
        reason = reason or "not given: needs a certified or a local Lipschitz constant"
    if reason:
        return Row(reason, relation)
    noise_sd = accounting.noise_sd(k=flow["k"], steps=flow["steps"])
    theorem = {}
    for name, L in constants.items():
        theorem[name] = accounting.theorem_epsilon(
            noise_sd=noise_sd, T=flow["T"], lipschitz=L, delta=delta
        )
    constants_words = ", ".join(f"{name} L = {L:.4g}" for name, L in constants.items())
    method = f"Theorem 1, noise_sd = {noise_sd:.4g}, {constants_words}"

    corollary = {}
    if nominal is not None and delta:
        steps = nominal["steps"]
        corollary = _corollary(flow, noise_sd, constants, steps, delta)
        values = ", ".join(_epsilons_in_words(corollary))
        method += f"; Corollary 1 over {steps:,} steps, total delta split evenly: {values}"

    by_construction = flow.get("lipschitz") is not None  # L then holds throughout training
    claim = corollary.get("certified") if by_construction else None
    remarks = []
    if max([*theorem.values(), *corollary.values()]) >= 1:
        remarks.append("stated for eps < 1: outside its domain")
    if corollary and not by_construction:
        remarks.append(
            "L of the weights at the end; the corollary takes the largest during training"
        )
    distance = bounds["distance"] or 0
    if distance > 1:
        remarks.append(
            f"states that enter lie up to {distance:.3g} apart; the theorem takes 1 at most"
        )
    return Row(
        "; ".join(_epsilons_in_words(theorem)),
        relation,
        epsilon=next(iter(theorem.values())),  # at the certified L where there is one
        claim=claim,
        untested=ONLY_CERTIFIED if claim is None else "",
        method=method,
        remarks=remarks,
    )


def _corollary(
    flow: dict, noise_sd: float, constants: dict[str, float], steps: int, delta: float
) -> dict[str, float]:
    """Corollary 1 over all steps of the training, at each of the Lipschitz constants."""
    return {
        name: accounting.corollary_epsilon(
            noise_sd=noise_sd,
            T=flow["T"],
            lipschitz=L,
            iterations=steps,
            delta=delta / (2 * steps),
            delta_prime=delta / 2,
        )
        for name, L in constants.items()
    }


def _epsilons_in_words(epsilons: dict[str, float]) -> list[str]:
    """Epsilons at the Lipschitz constants of these names, in words."""
    text = {"certified": "{} (certified L)", "local": ">= {} (at the local L)"}
    return [text[name].format(number(epsilon)) for name, epsilon in epsilons.items()]


def _release(flow: dict | None, bounds: dict, release: dict | None, delta: float) -> Row:
    """Row 3."""
    relation = "any two inputs, one at a time"
    if flow is None or flow["k"] == 0:
        return Row(NO_NOISE, relation)
    if not flow.get("noise_eval", True):
        return Row(
            INFINITE,
            relation,
            epsilon=math.inf,
            untested=OF_QUERIES,
            remarks=["noise is off at inference"],
        )
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
    shown = number(epsilon, up=True)
    if math.isfinite(epsilon):
        shown += over
    return Row(
        shown,
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
    """Whether the release bound holds for a solver."""
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


def _stored(flow: dict | None, bounds: dict, stored: dict, delta: float) -> Row:
    """Row 4 of a training on stored features: finite only where every condition of the release
    bound holds.
    """
    relation = one_of("relation", stored["relation"], accounting.RELATIONS)
    label = {"keep": stored["keep"], "classes": stored["classes"]}
    missing = _missing_of_stored(flow, bounds, stored)
    if missing:
        method = f"stored features, without {', '.join(missing)}"
        return Row(INFINITE, REPLACED, epsilon=math.inf, claim=math.inf, method=method)
    clip = flow["clip"]
    releases = stored["releases"]
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


def _missing_of_stored(flow: dict | None, bounds: dict, stored: dict) -> list[str]:
    """The conditions of a finite row 4 for stored features that do not hold."""
    missing = []
    if flow is None or flow["k"] == 0:
        missing.append("noise in the network")
    if flow is None or flow.get("clip") is None:
        missing.append("clipped h0 (clip=C)")
    if bounds["certified"] is None:
        missing.append("a certified L")
    if flow is not None and not _covered(flow):
        missing.append("euler or rk4 of order 1")
    if stored["keep"] == 1:
        missing.append("privatised labels")
    return missing


def _training(flow: dict | None, dp_sgd: dict | None, delta: float, accountant: str) -> Row:
    """Row 4 of a training on the records themselves."""
    if dp_sgd is None:
        method = "not trained with DP-SGD"
        return Row(INFINITE, RECORD, epsilon=math.inf, claim=math.inf, method=method)
    trials = dp_sgd.get("trials", 1)
    if trials < 1:
        raise ValueError(
            f"dp_sgd has trials={trials}: wanted the trainings on these records, the last"
            " included: 1 or more"
        )
    if accountant != "rdp":
        accountant = "prv"  # the Gaussian limit is no guarantee
    noise = dp_sgd["noise_multiplier"]
    rate = dp_sgd["sample_rate"]
    steps = dp_sgd["steps"]
    setting = {
        "noise_multiplier": noise,
        "sample_rate": rate,
        "delta": delta,
        "accountant": accountant,
    }
    last = accounting.epsilon(**setting, steps=steps)
    epsilon = last
    method = (
        f"DP-SGD, {accountant.upper()} accountant, noise multiplier {noise:.4g}, q = {rate:.4g},"
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
    """Row 5."""
    if audited is None:
        return Row("not audited", RECORD)
    shown = "0"
    if audited.epsilon > 0:
        shown = f"{audited.label} {number(audited.epsilon, up=False)}"
    runs = f"{audited.runs} runs together" if audited.runs > 1 else "one run"
    attack = f", {audited.attack}" if audited.attack else ""
    conditions = f"conditions: {audited.conditions}; a small bound is no evidence that little leaks"
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
        remarks=[conditions],
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
        units = math.floor(epsilon / unit)
        if up:
            units = math.ceil(epsilon / unit - 1e-9)
        epsilon = units * unit
    return f"{epsilon:,.0f}" if epsilon >= 999.5 else f"{epsilon:.3g}"
