"""Five numbers that are all written epsilon, in one table: what each speaks about, and what an audit says against it."""

from __future__ import annotations

import math

import pandas as pd

from mia_nb import accounting
from mia_nb.auditing.bounds import check_level
from mia_nb.checks import checked

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
COLUMNS = [
    "row",
    "label",
    "shown",
    "epsilon",
    "delta",
    "relation",
    "method",
    "note",
    "verdict",
    "remark",
]
NO_NOISE = "not applicable (no noise in the network)"
INFINITE = "none (infinite)"
RECORD = "add/remove one record"
REPLACED = "replace one record"
NOTHING_ABOVE = "no attack found that exceeds it"
COVERED = ("euler", "rk4")


@checked
def ladder(
    *,
    delta: float,
    flow: dict | None = None,
    nominal: dict | None = None,
    lipschitz: dict | None = None,
    release: dict | None = None,
    dp_sgd: dict | None = None,
    stored: dict | None = None,
    audited=None,
    accountant: str = "prv",
    sampling: str = "poisson",
) -> pd.DataFrame:
    """Five epsilons at one delta, a row each: what they speak about differs, so that none bounds another.

    1 nominal (paper's accounting)     `accounting.epsilon` with noise_multiplier = sigma = k sqrt(steps / T), as in the
                                       experiments of Hong, Wu, Gruber and Lee (arXiv 2501.06686); PRV by default,
                                       accountant="gdp", sampling="uniform" to follow their figure
    2 paper's theorem with measured L  their Theorem 1 at the certified L, and ">=" at the local L; Corollary 1 for all steps
    3 release bound                    exact Gaussian epsilon of `accounting.release_mu`, for `queries` answers on one input
    4 training guarantee               DP-SGD's accountant (PRV; RDP if asked for), or that of stored features, else infinite
    5 audited lower bound              the record of `audit` or `one_run`, and what it could have reached at most

    flow: {"k", "steps", "T", "method"} (`models.neural_de.describe` gives them and more: noise_train, noise_eval, clip, order
    and lipschitz are heeded where present), None for a network without a differential equation; nominal: {"sample_rate",
    "steps"} of the training; lipschitz: {"certified": L or None, "local": L or None, "distance" of states that enter};
    release: {"clip", "queries", "one_sided"}; dp_sgd: {"noise_multiplier", "sample_rate", "steps", "trials"}, where row 4
    shows the sum of that many trainings, all counted as this one, and an audit is compared with one.
    stored: {"releases", "label_epsilon"}: stem and drift frozen and trained on public data alone; the noisy state of every
    record drawn `releases` times and kept, its label by randomised response (`accounting.response_epsilon`; inf: as it is),
    and only that trained on: gaussian_epsilon(mu of row 3 for so many releases, delta) + label_epsilon, for one record
    *replaced* (basic composition; Dwork and Roth 2014). With fresh noise in every epoch the epochs are releases.
    Columns: row, label, shown (what to print), epsilon (inf; NaN where there is none), delta, relation, method, note (to print
    under the table), verdict (what row 5 says), remark (domain, assumptions seen to fail).
    An audit above rows 1, 2 (Corollary 1 at an L that bounds the drift by construction, throughout training) or 4 (DP-SGD, one
    training) by a method whose conditions hold refutes them: steinke always, fdp where the row claims a Gaussian trade-off
    (accountant="gdp"), xiang never, as its channel is a model. An audit below says nothing, all the more where right guesses
    alone could not have come above. Rows 2 (Theorem 1) and 3 concern a hidden state, which no audit of the training tests.
    Raises ValueError for incomplete or unknown arguments, a local L above the certified one, and an audit at another delta.
    """
    check_level(0.95, delta)
    _complete("flow", flow, ("k", "steps", "T", "method"), None)
    _complete("nominal", nominal, ("sample_rate", "steps"))
    _complete("dp_sgd", dp_sgd, ("noise_multiplier", "sample_rate", "steps"), ("trials",))
    _complete("lipschitz", lipschitz, (), ("certified", "local", "distance"))
    _complete(
        "release",
        release,
        () if (flow or {}).get("clip") else ("clip",),
        ("clip", "queries", "one_sided"),
    )
    _complete("stored", stored, ("releases", "label_epsilon"))
    if dp_sgd is not None and stored is not None:
        raise ValueError("dp_sgd and stored are two ways to train: a network has one of them")
    if audited is not None and not hasattr(audited, "at_most"):
        raise ValueError(
            f"audited is a {type(audited).__name__}: wanted the record that audit or one_run returns"
        )
    if audited is not None and audited.delta != delta:
        raise ValueError(
            f"audited holds at delta={audited.delta}, the ladder at delta={delta}: audit again at this delta"
        )
    bounds = {"certified": (flow or {}).get("lipschitz"), "local": None, "distance": None} | (
        lipschitz or {}
    )
    bounds = {
        name: None if L is None or math.isnan(L) else L for name, L in bounds.items()
    }  # second order has none
    if None not in (bounds["certified"], bounds["local"]) and bounds["local"] > bounds[
        "certified"
    ] * (1 + 1e-6):
        raise ValueError(
            f"a local L of {bounds['local']:.4g} refutes the certified {bounds['certified']:.4g}: measure again"
        )
    rows = [
        _nominal(flow, nominal, bounds, delta, accountant, sampling),
        _theorem(flow, nominal, bounds, delta),
        _release(flow, bounds, release, delta),
        _training(flow, dp_sgd, delta, accountant)
        if stored is None
        else _stored(flow, bounds, stored, delta),
        _audited(audited),
    ]
    gaussian = (accountant == "gdp", False, False, False, False)
    for i, (row, claims_gaussian) in enumerate(zip(rows, gaussian, strict=True)):
        row |= {"row": i + 1, "label": LABELS[i], "delta": delta, "note": row.get("note", NOTES[i])}
        row["verdict"] = _verdict(row, audited, claims_gaussian)
    if audited is not None and not math.isnan(rows[2]["epsilon"]):
        rows[2]["verdict"] = "not tested by row 5: it concerns the queried input"
    return pd.DataFrame(rows)[COLUMNS]


def number(epsilon: float, *, up: bool = False) -> str:
    """An epsilon as it is printed: three digits, rounded up where it is an upper statement; "none (infinite)" for inf."""
    if math.isinf(epsilon):
        return INFINITE
    if up and epsilon > 0:
        unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
        epsilon = math.ceil(epsilon / max(unit, 1e-12) - 1e-9) * max(unit, 1e-12)
    return f"{epsilon:,.0f}" if epsilon >= 999.5 else f"{epsilon:.3g}"


def _complete(
    name: str, given: dict | None, wanted: tuple[str, ...], optional: tuple[str, ...] | None = ()
) -> None:
    """ValueError unless `given` is a dict of `wanted` and, at most, `optional` (None: of anything besides)."""
    if given is None:
        return
    if not isinstance(given, dict):
        raise ValueError(f"{name}={given!r}: wanted a dict with {', '.join(wanted or optional)}")
    if missing := [key for key in wanted if given.get(key) is None]:
        raise ValueError(
            f"{name} lacks {', '.join(missing)}: wanted a dict with {', '.join(wanted)}"
        )
    if optional is not None and (
        unknown := [key for key in given if key not in (*wanted, *optional)]
    ):
        known = ", ".join(dict.fromkeys((*wanted, *optional)))
        raise ValueError(
            f"{name} has no {', '.join(map(repr, unknown))}: wanted a dict with {known}"
        )


def _absent(shown: str, relation: str, method: str = "", remark: str = "") -> dict:
    return {
        "shown": shown,
        "epsilon": math.nan,
        "relation": relation,
        "method": method,
        "remark": remark,
    }


def _silent(flow: dict | None) -> str | None:
    """Why rows 1 and 2 have no number, None where they have one."""
    if flow is None or flow["k"] == 0:
        return NO_NOISE
    return None if flow.get("noise_train", True) else "not applicable (no noise in training)"


def _nominal(flow, nominal, bounds, delta, accountant, sampling) -> dict:
    if silent := _silent(flow):
        return _absent(silent, RECORD)
    if nominal is None:
        return _absent("not given: needs sample_rate and steps of the training", RECORD)
    sigma = accounting.nsde_sigma(k=flow["k"], steps=flow["steps"], T=flow["T"])
    spent = {"sample_rate": nominal["sample_rate"], "steps": nominal["steps"], "delta": delta}
    epsilon = accounting.epsilon(
        noise_multiplier=sigma, **spent, accountant=accountant, sampling=sampling
    )
    kind = f"{accountant.upper()} accountant" + (
        f" ({sampling}), a central limit approximation" if accountant == "gdp" else ""
    )
    remarks = (
        [f"T = {flow['T']:g}: the tabulated sigma exceeds the theorem's by 1/sqrt T"]
        if flow["T"] < 1
        else []
    )
    reach = bounds["local"]
    if reach is not None and flow["T"] * reach > 1:
        remarks.append(
            f"T*L >= {flow['T'] * reach:.3g} at the local L: the assumption T*L <= 1 does not hold"
        )
    remarks.append(
        "noise on activations is no noise on clipped gradients; the accountant assumes secret Poisson batches"
    )
    method = f"{kind}, noise multiplier sigma = {sigma:.4g}, q = {spent['sample_rate']:.4g}, {spent['steps']:,} steps"
    found = {"epsilon": epsilon, "relation": RECORD, "method": method, "remark": "; ".join(remarks)}
    return found | {"shown": number(epsilon), "claim": epsilon}


def _theorem(flow, nominal, bounds, delta) -> dict:
    relation = "hidden states at distance <= 1 (Theorem 1)"
    if silent := _silent(flow):
        return _absent(silent, relation)
    known = {name: bounds[name] for name in ("certified", "local") if bounds[name] is not None}
    if not known:
        return _absent("not given: needs a certified or a local Lipschitz constant", relation)
    setting = {"noise_sd": accounting.noise_sd(k=flow["k"], steps=flow["steps"]), "T": flow["T"]}
    theorem = {
        name: accounting.theorem_epsilon(**setting, lipschitz=value, delta=delta)
        for name, value in known.items()
    }
    epsilon = theorem["certified"] if "certified" in theorem else theorem["local"]
    text = {"certified": "{} (certified L)", "local": ">= {} (at the local L)"}
    parts = [text[name].format(number(value)) for name, value in theorem.items()]
    method = f"Theorem 1, noise_sd = {setting['noise_sd']:.4g}, " + ", ".join(
        f"{n} L = {v:.4g}" for n, v in known.items()
    )
    found = {"epsilon": epsilon, "relation": relation, "shown": "; ".join(parts), "claim": None}
    built, every = flow.get("lipschitz") is not None, {}
    if nominal is not None and delta:
        whole = {
            "iterations": nominal["steps"],
            "delta": delta / (2 * nominal["steps"]),
            "delta_prime": delta / 2,
        }
        every = {
            n: accounting.corollary_epsilon(**setting, lipschitz=v, **whole)
            for n, v in known.items()
        }
        values = ", ".join(text[name].format(number(value)) for name, value in every.items())
        method += (
            f"; Corollary 1 over {nominal['steps']:,} steps, total delta split evenly: {values}"
        )
        found["claim"] = every.get("certified") if built else None
    outside = max([*theorem.values(), *every.values()]) >= 1
    remarks = ["stated for eps < 1: outside its domain"] if outside else []
    remarks += (
        []
        if built or not every
        else ["L of the weights at the end; the corollary takes the largest during training"]
    )
    if (distance := bounds["distance"]) is not None and distance > 1:
        remarks.append(
            f"states that enter lie up to {distance:.3g} apart; the theorem takes 1 at most"
        )
    return found | {"method": method, "remark": "; ".join(remarks)}


def _release(flow, bounds, release, delta) -> dict:
    relation = "any two inputs, one at a time"
    if flow is None or flow["k"] == 0:
        return _absent(NO_NOISE, relation)
    if not flow.get("noise_eval", True):
        return _absent(INFINITE, relation, remark="noise is off at inference") | {
            "epsilon": math.inf
        }
    if "clip" in flow and flow["clip"] is None:
        return _absent("not given: needs clipped h0 (build the block with clip=C)", relation)
    release = {"clip": flow.get("clip"), "queries": 1} | (release or {})
    if release["clip"] is None or bounds["certified"] is None:
        return _absent("not given: needs clipped h0 and a certified L", relation)
    if flow.get("clip", release["clip"]) != release["clip"]:
        raise ValueError(
            f"release clip={release['clip']}, but the network clips at {flow['clip']}: pass that, or leave it out"
        )
    if not _covered(flow):
        return _absent(
            f"not covered ({flow['method']}, order {flow.get('order', 1)}): wanted euler or rk4, order 1",
            relation,
        )
    mu = _mu(flow, bounds, release["clip"], release["queries"], release.get("one_sided"))
    epsilon = accounting.gaussian_epsilon(mu, delta)
    queries = f" over {release['queries']} queries" if release["queries"] > 1 else ""
    return {
        "shown": number(epsilon, up=True) + (queries if math.isfinite(epsilon) else ""),
        "epsilon": epsilon,
        "relation": relation,
        "method": f"exact Gaussian formula, mu = {mu:.4g}, {flow['method']}, Delta = {2 * release['clip']:.4g}, "
        f"certified L = {bounds['certified']:.4g}{queries}",
        "remark": "assumes noise that is independent and on at inference, h0 that depends on no other record (no batch norm "
        "in train mode), fixed parameters",
    }


def _covered(flow: dict) -> bool:
    return flow["method"] in COVERED and flow.get("order", 1) == 1


def _mu(
    flow: dict, bounds: dict, clip: float, queries: int, one_sided: float | None = None
) -> float:
    equation = {name: flow[name] for name in ("k", "steps", "T")} | {
        "scheme": flow["method"],
        "one_sided": one_sided,
    }
    return accounting.release_mu(
        **equation, lipschitz=bounds["certified"], clip=clip, queries=queries
    )


def _stored(flow, bounds, stored, delta) -> dict:
    """Row 4 of a training on stored features: finite only where every condition of the release bound holds."""
    clip, labels = (flow or {}).get("clip"), stored["label_epsilon"]
    lacks = {
        "noise in the network": flow is None or flow["k"] == 0,
        "clipped h0 (clip=C)": clip is None,
        "a certified L": bounds["certified"] is None,
        "euler or rk4 of order 1": flow is not None and not _covered(flow),
        "privatised labels": math.isinf(labels),
    }
    found = {"relation": REPLACED, "claim": None}
    if missing := [words for words, absent in lacks.items() if absent]:
        method = f"stored features, without {', '.join(missing)}"
        return found | {"shown": INFINITE, "epsilon": math.inf, "method": method, "remark": ""}
    mu = _mu(flow, bounds, clip, stored["releases"])
    epsilon = accounting.gaussian_epsilon(mu, delta) + labels
    method = f"stored features, exact Gaussian formula, mu = {mu:.4g}, Delta = {2 * clip:.4g}, "
    method += f"certified L = {bounds['certified']:.4g}, {stored['releases']:,} releases, "
    method += f"labels by randomised response of epsilon {labels:.4g}"
    remark = "assumes stem and drift frozen and trained on public data alone, noise drawn once a release and kept secret, "
    remark += "no batch norm in train mode, nothing else that reads the records; releases of all models that are shown count"
    return found | {
        "shown": number(epsilon, up=True),
        "epsilon": epsilon,
        "method": method,
        "remark": remark,
    }


def _training(flow, dp_sgd, delta, accountant) -> dict:
    if dp_sgd is None:
        found = {
            "shown": INFINITE,
            "epsilon": math.inf,
            "relation": RECORD,
            "method": "not trained with DP-SGD",
        }
        return found | {"remark": "", "claim": math.inf}
    used, trials = "rdp" if accountant == "rdp" else "prv", dp_sgd.get("trials", 1)
    if trials < 1:
        raise ValueError(
            f"dp_sgd has trials={trials}: wanted the trainings on these records, the last included: 1 or more"
        )
    spent = {key: dp_sgd[key] for key in ("noise_multiplier", "sample_rate", "steps")}
    one = accounting.epsilon(**spent, delta=delta, accountant=used)
    whole = spent | {"steps": spent["steps"] * trials}
    epsilon = one if trials == 1 else accounting.epsilon(**whole, delta=delta, accountant=used)
    method = (
        f"DP-SGD, {used.upper()} accountant, noise multiplier {spent['noise_multiplier']:.4g}, "
    )
    method += f"q = {spent['sample_rate']:.4g}, {spent['steps']:,} steps"
    method += (
        f", {trials} trainings, all counted as the last (one: {number(one, up=True)})"
        if trials > 1
        else ""
    )
    remark = "holds for the weights, with clipped per-sample gradients, Poisson batches and a secret seed"
    remark += "; the network's noise adds nothing" if flow is not None and flow["k"] > 0 else ""
    found = {
        "shown": number(epsilon, up=True),
        "epsilon": epsilon,
        "relation": RECORD,
        "method": method,
    }
    return found | {"remark": remark, "claim": one}


def _audited(audited) -> dict:
    if audited is None:
        return _absent("not audited", RECORD)
    note = NOTES[4].replace("95 %", _percent(audited.confidence))
    start, *rest = audited.label.split(",")
    shown = (
        ",".join([f"{start} {_rounded_down(audited.epsilon)}", *rest])
        if audited.epsilon > 0
        else "0"
    )
    runs = getattr(audited, "runs", 1)
    counted = f"m = {audited.canaries:,}, r = {audited.guesses:,}, v = {audited.correct:,}"
    method = f"{audited.method}, {f'{runs} runs together' if runs > 1 else 'one run'}, {counted}, "
    method += f"alpha = {audited.alpha:.3g}" + (
        f", {attack}" if (attack := getattr(audited, "attack", None)) else ""
    )
    method += f"; at most {_rounded_down(audited.at_most)} had every guess been right"
    found = {
        "shown": shown,
        "epsilon": float(audited.epsilon),
        "relation": RECORD,
        "method": method,
        "note": note,
    }
    return found | {
        "remark": f"conditions: {audited.conditions}; a small bound is no evidence that little leaks"
    }


def _rounded_down(epsilon: float) -> str:
    """A lower bound in three digits, never above itself."""
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2) if epsilon > 0 else 1.0
    return f"{math.floor(epsilon / unit) * unit:.3g}"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def _verdict(row: dict, audited, claims_gaussian: bool) -> str:
    """What row 5 says about the number that a row claims for the training."""
    claim = row.pop("claim", math.nan)
    if audited is None or (claim is not None and math.isnan(claim)):
        return ""
    if math.isinf(row["epsilon"]):
        return "nothing claimed"
    if claim is None and row["relation"] == REPLACED:
        return "not tested by row 5, whose coins add records"
    if claim is None:
        return "not tested by row 5: it takes Corollary 1 at an L that bounds the drift throughout training"
    if audited.epsilon <= claim and (most := audited.at_most) <= claim:
        return f"row 5 could not have exceeded it (at most {_rounded_down(most)})"
    if audited.epsilon <= claim:
        return NOTHING_ABOVE
    if audited.method == "steinke" or (audited.method == "fdp" and claims_gaussian):
        return f"refuted at {_percent(audited.confidence)} by row 5"
    return "row 5 is above, by a method whose conditions are not known to hold here: not refuted"
