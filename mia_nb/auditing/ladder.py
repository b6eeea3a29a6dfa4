"""Five numbers that are all written epsilon, in one table: what each speaks about, and what an audit says against it."""

from __future__ import annotations

import math

import pandas as pd

from mia_nb import accounting
from mia_nb.auditing.bounds import check_level

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
COLUMNS = ["row", "label", "shown", "epsilon", "delta", "relation", "method", "note", "verdict", "remark"]
NO_NOISE = "not applicable (no noise in the network)"
INFINITE = "none (infinite)"
RECORD = "add/remove one record"
NOTHING_ABOVE = "no attack found that exceeds it"
COVERED = ("euler", "rk4")


def ladder(
    *,
    delta: float,
    flow: dict | None = None,
    nominal: dict | None = None,
    lipschitz: dict | None = None,
    release: dict | None = None,
    dp_sgd: dict | None = None,
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
    4 training guarantee               DP-SGD's accountant (PRV; RDP if asked for), otherwise infinite
    5 audited lower bound              the record of `audit` or `one_run`

    flow: {"k", "steps", "T", "method"} (`models.neural_de.describe` gives them and more: noise_train, noise_eval, clip, order
    and lipschitz are heeded where present), None for a network without a differential equation; nominal: {"sample_rate",
    "steps"} of the training; lipschitz: {"certified": L or None, "local": L or None}; release: {"clip", "queries"};
    dp_sgd: {"noise_multiplier", "sample_rate", "steps"}.
    Columns: row, label, shown (what to print), epsilon (inf; NaN where there is none), delta, relation, method, note (to print
    under the table), verdict (what row 5 says), remark (domain, assumptions seen to fail).
    An audit above rows 1, 2 (Corollary 1 at the certified L) or 4 by a method whose conditions hold refutes them: steinke
    always, fdp where the row claims a Gaussian trade-off (accountant="gdp"), xiang never, as its channel is a model. An audit
    below says nothing. Rows 2 (Theorem 1) and 3 concern a hidden state, which no audit of the training tests.
    Raises ValueError for incomplete arguments, and an audit at another delta.
    """
    check_level(0.95, delta)
    _complete("flow", flow, ("k", "steps", "T", "method"))
    _complete("nominal", nominal, ("sample_rate", "steps"))
    _complete("dp_sgd", dp_sgd, ("noise_multiplier", "sample_rate", "steps"))
    _complete("release", release, ("clip",))
    if audited is not None and not hasattr(audited, "epsilon"):
        raise ValueError(f"audited is a {type(audited).__name__}: wanted the record that audit or one_run returns")
    if audited is not None and audited.delta != delta:
        raise ValueError(f"audited holds at delta={audited.delta}, the ladder at delta={delta}: audit again at this delta")
    bounds = {"certified": (flow or {}).get("lipschitz"), "local": None} | (lipschitz or {})
    bounds = {name: None if L is None or math.isnan(L) else L for name, L in bounds.items()}  # second order has none
    rows = [
        _nominal(flow, nominal, bounds, delta, accountant, sampling),
        _theorem(flow, nominal, bounds, delta),
        _release(flow, bounds, release, delta),
        _training(flow, dp_sgd, delta, accountant),
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
    return f"{epsilon:,.0f}" if epsilon >= 1000 else f"{epsilon:.3g}"


def _complete(name: str, given: dict | None, wanted: tuple[str, ...]) -> None:
    if given is not None and (missing := [key for key in wanted if given.get(key) is None]):
        raise ValueError(f"{name} lacks {', '.join(missing)}: wanted a dict with {', '.join(wanted)}")


def _absent(shown: str, relation: str, method: str = "", remark: str = "") -> dict:
    return {"shown": shown, "epsilon": math.nan, "relation": relation, "method": method, "remark": remark}


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
    epsilon = accounting.epsilon(noise_multiplier=sigma, **spent, accountant=accountant, sampling=sampling)
    kind = f"{accountant.upper()} accountant" + (f" ({sampling}), a central limit approximation" if accountant == "gdp" else "")
    remarks = [f"T = {flow['T']:g}: the tabulated sigma exceeds the theorem's by 1/sqrt T"] if flow["T"] < 1 else []
    reach = bounds["local"]
    if reach is not None and flow["T"] * reach > 1:
        remarks.append(f"T*L >= {flow['T'] * reach:.3g} at the local L: the assumption T*L <= 1 does not hold")
    remarks.append("noise on activations is no noise on clipped gradients")
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
    theorem = {name: accounting.theorem_epsilon(**setting, lipschitz=value, delta=delta) for name, value in known.items()}
    epsilon = theorem["certified"] if "certified" in theorem else theorem["local"]
    text = {"certified": "{} (certified L)", "local": ">= {} (at the local L)"}
    parts = [text[name].format(number(value)) for name, value in theorem.items()]
    method = f"Theorem 1, noise_sd = {setting['noise_sd']:.4g}, " + ", ".join(f"{n} L = {v:.4g}" for n, v in known.items())
    found = {"epsilon": epsilon, "relation": relation, "shown": "; ".join(parts), "claim": None}
    if nominal is not None:
        whole = {"iterations": nominal["steps"], "delta": delta / (2 * nominal["steps"]), "delta_prime": delta / 2}
        every = {n: accounting.corollary_epsilon(**setting, lipschitz=v, **whole) for n, v in known.items()} if delta else {}
        values = ", ".join(text[name].format(number(value)) for name, value in every.items())
        method += f"; Corollary 1 over {nominal['steps']:,} steps, total delta split evenly: {values}" if every else ""
        found["claim"] = every.get("certified")
    outside = max(theorem.values()) >= 1 or (found["claim"] or 0) >= 1
    return found | {"method": method, "remark": "stated for eps < 1: outside its domain" if outside else ""}


def _release(flow, bounds, release, delta) -> dict:
    relation = "any two inputs, one at a time"
    if flow is None or flow["k"] == 0:
        return _absent(NO_NOISE, relation)
    if not flow.get("noise_eval", True):
        return _absent(INFINITE, relation, remark="noise is off at inference") | {"epsilon": math.inf}
    if "clip" in flow and flow["clip"] is None:
        return _absent("not given: needs clipped h0 (build the block with clip=C)", relation)
    release = {"clip": flow.get("clip"), "queries": 1} | (release or {})
    if release["clip"] is None or bounds["certified"] is None:
        return _absent("not given: needs clipped h0 and a certified L", relation)
    if flow.get("clip", release["clip"]) != release["clip"]:
        raise ValueError(f"release clip={release['clip']}, but the network clips at {flow['clip']}: pass that, or leave it out")
    if flow["method"] not in COVERED or flow.get("order", 1) != 1:
        return _absent(f"not covered ({flow['method']}, order {flow.get('order', 1)}): wanted euler or rk4, order 1", relation)
    setting = {
        "k": flow["k"],
        "steps": flow["steps"],
        "T": flow["T"],
        "lipschitz": bounds["certified"],
        "clip": release["clip"],
    }
    mu = accounting.release_mu(**setting, scheme=flow["method"], queries=release["queries"])
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


def _training(flow, dp_sgd, delta, accountant) -> dict:
    if dp_sgd is None:
        found = {"shown": INFINITE, "epsilon": math.inf, "relation": RECORD, "method": "not trained with DP-SGD"}
        return found | {"remark": "", "claim": math.inf}
    used = "rdp" if accountant == "rdp" else "prv"
    spent = {key: dp_sgd[key] for key in ("noise_multiplier", "sample_rate", "steps")}
    epsilon = accounting.epsilon(**spent, delta=delta, accountant=used)
    method = f"DP-SGD, {used.upper()} accountant, noise multiplier {spent['noise_multiplier']:.4g}, "
    method += f"q = {spent['sample_rate']:.4g}, {spent['steps']:,} steps"
    noisy = flow is not None and flow["k"] > 0
    remark = "holds for the weights, with clipped per-sample gradients, Poisson batches and a secret seed" + (
        "; the network's noise adds nothing" if noisy else ""
    )
    return {
        "shown": number(epsilon, up=True),
        "epsilon": epsilon,
        "relation": RECORD,
        "method": method,
        "remark": remark,
        "claim": epsilon,
    }


def _audited(audited) -> dict:
    if audited is None:
        return _absent("not audited", RECORD)
    note = NOTES[4].replace("95 %", _percent(audited.confidence))
    start, *rest = audited.label.split(",")
    shown = ",".join([f"{start} {_rounded_down(audited.epsilon)}", *rest]) if audited.epsilon > 0 else "0"
    runs = getattr(audited, "runs", 1)
    counted = f"m = {audited.canaries:,}, r = {audited.guesses:,}, v = {audited.correct:,}"
    method = f"{audited.method}, {f'{runs} runs together' if runs > 1 else 'one run'}, {counted}, "
    method += f"alpha = {audited.alpha:.3g}" + (f", {attack}" if (attack := getattr(audited, "attack", None)) else "")
    found = {"shown": shown, "epsilon": float(audited.epsilon), "relation": RECORD, "method": method, "note": note}
    return found | {"remark": f"conditions: {audited.conditions}; a small bound is no evidence that little leaks"}


def _rounded_down(epsilon: float) -> str:
    """A lower bound in three digits, never above itself."""
    unit = 10.0 ** (math.floor(math.log10(epsilon)) - 2)
    return f"{math.floor(epsilon / unit) * unit:.3g}"


def _percent(confidence: float) -> str:
    return f"{100 * confidence:g} %"


def _verdict(row: dict, audited, claims_gaussian: bool) -> str:
    """What row 5 says about the number that a row claims for the training."""
    claim = row.pop("claim", math.nan)
    if audited is None or (claim is not None and math.isnan(claim)):
        return ""
    if claim is None:
        return "not tested by row 5: it takes Corollary 1 at a certified L"
    if math.isinf(claim):
        return "nothing claimed"
    if audited.epsilon <= claim:
        return NOTHING_ABOVE
    if audited.method == "steinke" or (audited.method == "fdp" and claims_gaussian):
        return f"refuted at {_percent(audited.confidence)} by row 5"
    return "row 5 is above, by a method whose conditions are not known to hold here: not refuted"
