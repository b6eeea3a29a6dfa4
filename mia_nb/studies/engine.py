"""Claims as signed differences between settings of a study: paired intervals, verdicts and their
evidence.

A study is a YAML file. Its `claims` hold, by name,

    sentence, needs     what is claimed, and what must be run to decide it
    quote, place        the paper's own words ("…" where words are left out), and where they stand
    extends             what the extended verdict asks for beyond the paper's comparisons
    ours                a remark of this package, no claim of the paper
    proved              for what the paper proves rather than measures: under which condition
    parts               without one of these the claim cannot hold
    equal               it compares risks of different models, which says less at unequal accuracy
    matched             compared again at equal "test_acc" or "gap", where checkpoints are
    tpr                 equal AUC is not enough: the TPR decides too
    design_check        an AUC less 1/2 that lies below this jointly is a failed design
    remarks             functions of `remarks.py` that add to the evidence
    decided_by          a function of `beside.py`, for a claim that no join decides
    joins               which settings are set against each other, and how they are compared

A join takes the settings `a`, and either those of `b` that share all fields but those in `differ`
(without `differ` they share nothing), or compares those of `a` `along` a field, `but` the fields
that follow from it, with those in `instead_of` replaced by a property; `which` of the steps (see
`joins`). `only_b` narrows `b`; `most_alike`: of the first sides those most like the second;
`queries`: the "most" that were run, or "fewer". Each entry of `compare` is one comparison of every
pair:

    part, compared      its group in the evidence, and its words: templates of a, b, attack, attacks
    attack              one attack on both sides, or one for each; absent: the strongest of all that
                        both sides have
    attacks             a list, or "each" (of several) that both sides have, one by one; "in order
                        under b": two attacks on a, the first surely stronger than the other on b
    metric              auc, leak (auc less 1/2), tpr (at the smallest FPR that all settings can
                        measure), test_accuracy, gap (train minus test accuracy)
    needed              false: reported, decides nothing
    above, margin       wanted above `above` (0), or within +-margin
    ratio, swap         a over b; b minus a
    minus               "chance", or "curve" (of `privacy.py`), in place of b
    instead, beyond     fields replaced in b; the same difference with fields replaced, subtracted
    tpr                 false: no TPR beside an AUC that decides
    verdict             "as printed" or "extended": only that verdict asks for it; absent: both do

Every claim has two verdicts (`as_printed`): on exactly the settings and attacks of the paper's
tables, and on all that was run.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from mia_nb.attacks import in_words
from mia_nb.metrics.curve import measurable
from mia_nb.metrics.pairs import same_masks
from mia_nb.metrics.uncertainty import (
    FPR,
    bootstrap,
    interval,
    intervals_at,
    names,
    per_target_metrics,
    ratio_interval,
    smallest,
)
from mia_nb.parameters import read_yaml_file
from mia_nb.studies.beside import DECIDED_BY
from mia_nb.studies.joins import matches, pairs
from mia_nb.studies.remarks import AT_EQUAL, REMARKS, deciding_aucs
from mia_nb.studies.setting import Setting, usable
from mia_nb.types import Scores

SAME = 0.01  # differences up to this count as none, of AUC and of accuracy
TPR = "tpr"  # stands for the TPR at the smallest FPR that all settings can measure
STOCHASTIC_ONLY = ("lira_joint",)  # attacks that read off how outputs of one query differ
OF_MODELS = ("test_accuracy", "gap")
JOIN = {
    "a",
    "b",
    "differ",
    "only_b",
    "along",
    "but",
    "instead_of",
    "which",
    "most_alike",
    "queries",
    "compare",
}
FAILED = (
    "design check failed: AUC below 0.5, a wrong sign or an effect of the design and no absence of"
    " risk"
)
COLUMNS = [
    "claim",
    "part",
    "compared",
    "metric",
    "needed",
    "value",
    "low",
    "high",
    "simultaneous_low",
    "simultaneous_high",
    "margin",
    "outcome",
    "relative",
    "relative_low",
    "relative_high",
]


class Contrast(NamedTuple):
    """A weighted sum over sides; a side is one setting, or the strongest of several attacks.

    The fields are those of `compare` in a study's file.
    """

    part: str
    compared: str
    terms: tuple[tuple[int, tuple[Setting, ...]], ...]
    metric: str = "auc"
    needed: bool = True
    margin: float = 0.0
    above: float = 0.0
    ratio: bool = False
    minus: str = ""
    tpr: bool = True

    @property
    def first(self) -> Setting:
        return self.terms[0][1][0]


COMPARISON = {"attack", "attacks", "swap", "instead", "beyond", "verdict", *Contrast._fields}
COMPARISON -= {"terms"}


class Claim(NamedTuple):
    """An entry of `claims`, see the top of this module."""

    sentence: str
    needs: str
    joins: list[dict] = []  # noqa: RUF012 - never changed
    parts: tuple[str, ...] = ()
    equal: bool = False
    matched: str = ""
    tpr: bool = False
    design_check: float = -1.0
    remarks: tuple[str, ...] = ()
    decided_by: str = ""
    quote: str = ""
    place: str = ""
    extends: str = ""
    ours: bool = False
    proved: str = ""


class Study(NamedTuple):
    """A study's file: its models (empty for any), which settings decide, claims and selections."""

    claims: dict[str, Claim]
    models: tuple[str, ...] = ()
    decide: dict = {}  # noqa: RUF012 - never changed
    selections: dict = {}  # noqa: RUF012
    printed: dict = {}  # noqa: RUF012
    name: str = ""


def load(study: str | Path) -> Study:
    """The study of this name, which is read once, or of a YAML file at this path, which is read
    each time: it may be edited meanwhile.
    """
    if str(study).endswith(".yaml"):
        path = Path(study)
        read = _read_study
    else:
        path = Path(__file__).with_name(f"{study}.yaml")
        read = _shipped
    if not path.is_file():
        known = sorted(file.stem for file in Path(__file__).parent.glob("*.yaml"))
        raise ValueError(f"no study {str(study)!r}: wanted a YAML file or one of {known}")
    return read(path)


def _read_study(path: Path) -> Study:
    """The study of a YAML file; ValueError of one line where it is none."""
    entries = read_yaml_file(path)
    try:
        claims = {name: Claim(**claim) for name, claim in entries["claims"].items()}
        for name, join in ((name, join) for name, claim in claims.items() for join in claim.joins):
            fields = (
                field for key in ("but", "differ", "instead_of") for field in join.get(key, ())
            )
            parts = [
                (join, JOIN),
                *((entry, COMPARISON) for entry in join["compare"]),
                ([join.get("along", "model"), *fields], dir(Setting)),
            ]
            if strange := [entry for part, known in parts for entry in part if entry not in known]:
                known = f"fields of a setting are {', '.join(Setting._fields)}"
                raise ValueError(f"claim {name} has unknown entries {strange}; {known}")
        return Study(**entries | {"claims": claims, "name": path.stem})
    except (KeyError, TypeError, ValueError) as reason:
        raise ValueError(f"{path.name} is no study: {reason}") from None


_shipped = cache(_read_study)  # a third of a second each, and nothing changes what was read


def asking(study: Study, verdict: str) -> Study:
    """The study with the comparisons that this verdict ("as printed" or "extended") asks for."""
    claims = {}
    for name, claim in study.claims.items():
        joins = []
        for join in claim.joins:
            asked = [
                comparison
                for comparison in join["compare"]
                if comparison.get("verdict", verdict) == verdict
            ]
            joins.append(join | {"compare": asked})
        claims[name] = claim._replace(joins=joins)
    return study._replace(claims=claims)


def deciding(study: Study, settings: dict) -> dict[Setting, Scores]:
    """The settings in normal form that decide the study's claims; ValueError as in `usable`."""
    checked = usable(settings, study.models)
    return {
        setting: scores for setting, scores in checked.items() if matches(setting, study.decide)
    }


def contrasts(study: Study, claim: Claim, settings: dict[Setting, Scores]) -> list[Contrast]:
    """Everything that a claim compares, as far as it was run."""
    networks = list(dict.fromkeys(setting._replace(attack="") for setting in settings))
    return [
        contrast
        for join in claim.joins
        for pair in pairs(join, networks, study.selections)
        for comparison in join["compare"]
        for contrast in _contrasts(comparison, *pair, settings)
    ]


def _contrasts(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Scores]
) -> Iterator[Contrast]:
    """One comparison of two settings, for each of its attacks."""
    options = {name: comparison[name] for name in Contrast._fields if name in comparison}
    b = b._replace(**comparison.get("instead", {}))
    a, b = (b, a) if comparison.get("swap") else (a, b)
    sign = "/" if comparison.get("ratio") else "-"
    of_models = comparison.get("metric") in OF_MODELS
    strongest_only = not {"attack", "attacks"} & set(comparison)
    listed = ", {attacks}" if strongest_only and not of_models else ""
    compared = comparison.get("compared", f"{{a.models}} {sign} {{b.models}}{listed}")
    for attack, side_a, side_b in _sides(comparison, a, b, settings):
        words = {
            "a": a,
            "b": b,
            "attack": attack,
            "other": side_b[0].attack,
            "attacks": worst_case(side_a, side_b),
        }
        most = 1 if of_models else None  # all attacks on a model share them
        terms = ((1, side_a[:most]), (-1, side_b[:most]))[: 1 if comparison.get("minus") else 2]
        if "beyond" in comparison:
            others = [
                (-weight, (side[0]._replace(**comparison["beyond"]),)) for weight, side in terms
            ]
            if not all(side[0] in settings for _, side in others):
                continue
            terms = (*terms, *others)
        texts = {"part": comparison["part"].format(**words), "compared": compared.format(**words)}
        yield Contrast(**options | texts | {"terms": terms})


def _sides(
    comparison: dict, a: Setting, b: Setting, settings: dict[Setting, Scores]
) -> Iterator[tuple[str, tuple, tuple]]:
    """(attack, side of a, side of b) for each attack of a comparison that both settings have."""
    side_a, side_b = strongest(settings, a, b)
    if "attack" in comparison:
        attacks_of_rule = comparison["attack"]
        named = [
            (attacks_of_rule, attacks_of_rule)
            if isinstance(attacks_of_rule, str)
            else attacks_of_rule
        ]
    elif "attacks" not in comparison:
        if side_a:
            yield "", side_a, side_b
        return
    elif comparison["attacks"] == "in order under b":
        named = list(_ordered_under(settings, a, b))
        b = a
    elif isinstance(comparison["attacks"], list):
        named = [(attack, attack) for attack in comparison["attacks"]]
    else:
        common = [
            setting.attack for setting in side_a if b._replace(attack=setting.attack) in side_b
        ]
        several = comparison["attacks"] == "each of several"
        named = [(attack, attack) for attack in common if len(common) > several]
    for attack, other in named:
        sides = a._replace(attack=attack), b._replace(attack=other)
        if all(side in settings for side in sides):
            yield attack, sides[:1], sides[1:]


def _ordered_under(
    settings: dict[Setting, Scores], a: Setting, b: Setting
) -> Iterator[tuple[str, str]]:
    """Two attacks that both settings have, the first of larger AUC under b beyond its interval."""
    attacks = dict.fromkeys(setting.attack for setting in settings)
    sides = {attack: (a._replace(attack=attack), b._replace(attack=attack)) for attack in attacks}
    both = {
        attack: side
        for attack, side in sides.items()
        if all(setting in settings for setting in side)
    }
    auc = {name: per_target_metrics(settings[on_b], ())[:, 0] for name, (_, on_b) in both.items()}
    for better, worse in permutations(auc, 2):
        if interval(auc[better] - auc[worse], settings[both[better][1]].pair)[0] > 0:
            yield better, worse


def strongest(settings: dict[Setting, Scores], *networks: Setting) -> list[tuple[Setting, ...]]:
    """For each network the attacks that all of them have, so that families are compared by their
    worst case; maybe none.

    What only stochastic networks can be queried for (`STOCHASTIC_ONLY`) counts beside these where
    all stochastic ones have it.
    """
    attacks = dict.fromkeys(setting.attack for setting in settings)
    run = {
        name: [setting._replace(attack=name) in settings for setting in networks]
        for name in attacks
    }
    common = [name for name in attacks if all(run[name])]
    noisy = [setting.stochastic for setting in networks]
    of_models = [
        name
        for name in STOCHASTIC_ONLY
        if name in attacks and name not in common and any(noisy) and run[name] == noisy
    ]
    sides = []
    for network in networks:
        names = [*common, *of_models] if network.stochastic else common
        if not common:
            names = []
        sides.append(tuple(network._replace(attack=name) for name in names))
    return sides


def worst_case(side: tuple, other: tuple) -> str:
    """In words: which attacks a side takes the strongest of, and the other side where it takes
    other ones.
    """
    words = [
        f"strongest of {len(side_settings)} attacks"
        if len(side_settings) > 1
        else side_settings[0].attack
        for side_settings in (side, other)
    ]
    return " against ".join(dict.fromkeys(words))


def measuring(n_resamples: int, seed: int) -> Callable[[Scores], dict]:
    """A function of scores: {metric: (values of the targets, their resampled values or None)}. It
    resamples the same scores once, however many comparisons and verdicts ask for them.
    """

    @cache
    def measured(scores: Scores) -> dict:
        """What was measured of scores, resampled."""
        drawn = bootstrap(scores, FPR, n_resamples=n_resamples, seed=seed)
        points = dict(zip(names(FPR), per_target_metrics(scores, FPR).T, strict=True))
        found = {name: (values, drawn[name]) for name, values in points.items()}
        found["leak"] = (points["auc"] - 0.5, drawn["auc"] - 0.5)
        found["test_accuracy"] = (scores.accuracy[:, 1], None)
        found["gap"] = (-np.diff(scores.accuracy)[:, 0], None)
        return found

    return measured


def compare(
    study: Study,
    settings: dict[Setting, Scores],
    measured: Callable[[Scores], dict],
    *,
    level: float,
) -> list[dict]:
    """One row per comparison that the study's claims rest on, as far as it was run, with `COLUMNS`.

    settings: of `deciding`; measured: of `measuring`. Intervals are those of `metrics.interval` (of
    a ratio `ratio_interval`), paired: the same samples and pairs in every setting. Those of
    accuracies and gaps cover pairs alone. What is compared with a curve is left out. ValueError
    when targets were trained on different masks.
    """
    _same_masks(settings)
    n0 = min((smallest(setting)[1] for setting in settings.values()), default=0)
    tpr = next((f"tpr@{x:g}" for x in FPR if measurable(f"tpr@{x:g}", n0)), None)

    def of(setting: Setting) -> dict:
        """What was measured of a setting."""
        return measured(settings[setting])

    rows = []
    for name, claim in study.claims.items():
        wanted = list(_with_tpr(claim, contrasts(study, claim, settings), tpr))
        jointly = Counter(map(_family, wanted))
        for contrast in wanted:
            levels = (level, 1 - (1 - level) / jointly[_family(contrast)])
            scores = settings[contrast.first]
            rows.append(
                row_of(name, contrast, *_estimate(contrast, of, scores.pair, levels))
                # then the intervals are of samples only
                | ({"outcome": "open"} if one_pair(scores) else {})
                | _relative(contrast, of, scores.pair, level)
            )
    return rows


def _same_masks(settings: dict[Setting, Scores]):
    """A pairing needs row k of every setting to be a model trained on the same samples."""
    for setting, scores in settings.items():
        if not same_masks(scores, settings[first := next(iter(settings))]):
            raise ValueError(
                f"{setting.where} and {first.where} have different membership: claims need pools"
                " trained on the same masks and the same targets of each"
            )


def _with_tpr(claim: Claim, contrasts: list[Contrast], tpr: str | None) -> Iterator[Contrast]:
    """The contrasts of a claim; every AUC that decides gets its TPR beside it, where a margin is
    not as wide as the rate itself.
    """
    for contrast in contrasts:
        if contrast.minus == "curve":
            continue
        if contrast.metric != TPR:
            yield contrast
        beside = (
            contrast.metric == "auc"
            and contrast.needed
            and contrast.tpr
            and (claim.tpr or contrast.margin < _rate(tpr or ""))
        )
        if tpr and (contrast.metric == TPR or beside):
            yield contrast._replace(metric=tpr, needed=claim.tpr if beside else contrast.needed)


def _family(contrast: Contrast) -> str:
    """Comparisons whose errors are counted together."""
    return "needed" if contrast.needed else f"{contrast.part}, {contrast.metric}"


def _estimate(contrast: Contrast, of: Callable, pair: np.ndarray, levels: Sequence[float]) -> tuple:
    """(value, interval per level): paired, of the attack of largest mean on each side."""
    metric = contrast.metric
    sides = _of_strongest(contrast, of, metric)
    if contrast.ratio:
        (a, draws_a), (b, draws_b) = sides
        with np.errstate(divide="ignore", invalid="ignore"):
            value = np.divide(a.mean(), b.mean())
        if metric == "leak":
            value = np.maximum(value, 0.0)  # an AUC below 1/2 counts as 1/2
        return value, *(
            ratio_interval(a, b, pair, draws_a, draws_b, confidence=level) for level in levels
        )
    by_chance = 0.5 if metric == "auc" else _rate(metric)
    minus = by_chance if contrast.minus == "chance" else 0.0
    weights = [weight for weight, _ in contrast.terms]
    values, drawn = (
        None
        if parts[0] is None
        else sum(w * part for w, part in zip(weights, parts, strict=True)) - minus
        for parts in zip(*sides, strict=True)
    )
    return values.mean(), *intervals_at(levels, values, pair, drawn)


def _of_strongest(contrast: Contrast, of: Callable, metric: str) -> list[tuple]:
    """(values, resampled values) of each side: of its attack of largest mean."""
    return [
        max((of(setting)[metric] for setting in side), key=lambda values: values[0].mean())
        for _, side in contrast.terms
    ]


def _relative(contrast: Contrast, of: Callable, pair: np.ndarray, level: float) -> dict:
    """A difference of AUC under a margin as a share of the second side's AUC - 1/2, with its
    interval; empty elsewhere.

    Where the whole leak is 0.02, two networks are within a margin of 0.01 almost by themselves.
    """
    of_two = len(contrast.terms) == 2 and not contrast.ratio and not contrast.minus
    if not (contrast.margin and contrast.metric == "auc" and of_two):
        return {}
    (a, draws_a), (b, draws_b) = _of_strongest(contrast, of, "leak")
    low, high = ratio_interval(a, b, pair, draws_a, draws_b, confidence=level)
    share = a.mean() / b.mean() - 1 if b.mean() > 0 else np.nan
    return {"relative": float(share), "relative_low": low - 1, "relative_high": high - 1}


def _rate(metric: str) -> float:
    """The FPR in a metric's name; 0 where there is none."""
    return float(metric.partition("tpr@")[2] or 0)


def row_of(
    name: str, contrast: Contrast, value: float, ends: tuple, simultaneous: tuple
) -> dict[str, object]:
    """One row of `compare`.

    Parameters:
        name: of the claim
        contrast: what is compared, by which margin
        value: of the difference or ratio
        ends: of its own interval, which decides "for"
        simultaneous: ends of the interval that holds for all comparisons together, which decides
            "against"; NaN decides nothing
    """
    low, high = ends
    simultaneous_low, simultaneous_high = simultaneous
    margin = contrast.margin
    metric = contrast.metric
    out_of_reach = False
    if contrast.ratio:
        metric = f"ratio of {contrast.metric}"
        # A model at chance has TPR = FPR: above 1 / FPR no ratio to it can be seen, so that
        # falling short of it shows nothing.
        out_of_reach = contrast.above * _rate(contrast.metric) > 1 - 1e-9
    if margin:
        holds = -margin < low and high < margin
        fails = simultaneous_low > margin or simultaneous_high < -margin
    else:
        holds = low > contrast.above
        fails = simultaneous_high < contrast.above
    outcome = "open"
    if holds:
        outcome = "for"
    elif fails and not out_of_reach:
        outcome = "against"
    return {
        "claim": name,
        "part": contrast.part,
        "compared": contrast.compared,
        "metric": metric,
        "needed": contrast.needed,
        "value": float(value),
        "low": low,
        "high": high,
        "simultaneous_low": simultaneous_low,
        "simultaneous_high": simultaneous_high,
        "margin": margin,
        "outcome": outcome,
        **dict.fromkeys(("relative", "relative_low", "relative_high"), np.nan),
    }


def one_pair(scores: Scores) -> bool:
    """Whether all targets are of one pair, which does not show what training changes."""
    return len(np.unique(scores.pair)) < 2


def judge(
    study: Study, settings: dict[Setting, Scores], table: pd.DataFrame, **context: Any
) -> pd.DataFrame:
    """A verdict per claim from its rows in `table`: claim, verdict, evidence, compared,
    accuracy_apart.

    Parameters:
        context: what else remarks, and claims that rest on no comparison, read.
    """
    verdicts = {}
    fewer = table.attrs.get("fewer", {})
    for name, claim in study.claims.items():
        rows = table[table["claim"] == name]
        wanted = contrasts(study, claim, settings)
        needed = rows[rows["needed"]]
        apart = _apart([contrast for contrast in wanted if contrast.needed], settings)
        missing = [part for part in claim.parts if part not in set(needed["part"])]
        failed = (
            needed.loc[needed["metric"] == "auc", "simultaneous_high"] < claim.design_check
        ).any()
        evidence = [f"not run: needs {claim.needs}"]
        if len(rows):
            about = {"study": study, "settings": settings, "wanted": wanted, **context}
            evidence = [
                *_evidence(rows),
                *(f"{part}: not run" for part in missing),
                *(text for item in claim.remarks for text in REMARKS[item](rows, **about)),
                *([FAILED] if failed else []),
                *_caveats(wanted, settings),
            ]
        unequal = claim.equal and apart > SAME + 1e-9
        verdict = _qualified(_verdict(needed, missing), rows, unequal, fewer.get(name))
        curves = needed["metric"] if any(item.minus == "curve" for item in wanted) else []
        if verdict == "holds" and (least := min(map(_rate, curves), default=0)) > FPR[0]:
            verdict = f"holds (at FPR {least:g} and above)"
        verdicts[name] = {
            "claim": claim.sentence,
            "verdict": "not resolved (design check failed)" if failed else verdict,
            "evidence": re.sub(
                r"\b(?:rmia|lira|nig|attack)\w*", lambda key: in_words(key[0]), "; ".join(evidence)
            ),
            "compared": "; ".join(dict.fromkeys(needed["compared"])),
            "accuracy_apart": 100 * apart,
        }
        if claim.decided_by:
            verdicts[name] |= DECIDED_BY[claim.decided_by](**context)
    return pd.DataFrame.from_dict(verdicts, orient="index").rename_axis("id")


def _qualified(verdict: str, rows: pd.DataFrame, unequal: bool, fewer: str | None) -> str:
    """The verdict with what comparisons at equal accuracy make of it; only what is decided can rest
    on unequal accuracy.
    """
    outcomes = rows.loc[rows["part"] == AT_EQUAL["test_acc"], "outcome"]
    against = (outcomes == "against").any()
    if verdict == "holds" and against:
        return "not at equal accuracy"
    every = len(outcomes) == deciding_aucs(rows) and (outcomes == "for").all()
    same = every if verdict == "holds" else against and verdict == "does not hold"
    if same and len(outcomes):
        return f"{verdict} (also at equal accuracy{f', {fewer}' if fewer else ''})"
    decided = verdict in ("holds", "does not hold")
    return f"{verdict} (at unequal accuracy)" if unequal and decided else verdict


def _verdict(needed: pd.DataFrame, missing) -> str:
    if not len(needed):
        return "not run"
    if (needed["outcome"] == "against").any():
        return "does not hold"
    return "holds" if (needed["outcome"] == "for").all() and not missing else "not resolved"


def _evidence(rows: pd.DataFrame) -> Iterator[str]:
    """A phrase per part: counts, and the comparison that is least for the claim; of a TPR that
    decides nothing the counts.
    """
    for (part, metric), group in rows.groupby(["part", "metric"], sort=False):
        least = _least(group)
        tpr = metric.startswith("tpr@")
        texts = [
            f"{(group['outcome'] == side).sum()} of {len(group)} {side}"
            for side in ("for", "against")
        ]
        if not tpr or least["needed"]:
            form = ".1f" if metric.startswith("ratio of tpr") else "+.3f"
            value, low, high = (format(least[name], form) for name in ("value", "low", "high"))
            ends = f"{least['compared']} {value} [{low}, {high}]"
            texts = [*texts, f"least {ends}"] if len(group) > 1 else [ends]
        title = f"{part} {metric}" if "tpr@" in metric else part
        yield f"{metric if metric.startswith(part) else title}: {', '.join(texts)}"
        if group["relative"].notna().any():
            most = group.loc[group["relative"].abs().idxmax()]
            share, low, high = (most[f"relative{end}"] for end in ("", "_low", "_high"))
            yield (
                f"{part}, as a share of the other side's AUC - 1/2: at most {share:+.0%}"
                f" [{low:+.0%}, {high:+.0%}] ({most['compared']})"
            )


def _least(group: pd.DataFrame) -> pd.Series:
    """First those that are not for the claim: of these, or of all, the smallest difference; under
    a margin the largest in size; a difference that is no number where all are none.
    """
    value = group["value"].to_numpy()
    size = np.where(group["margin"] == 0, value, -abs(value))
    return group.iloc[np.lexsort((size, group["outcome"] == "for"))[0]]


def _accuracy(wanted: list[Contrast], settings: dict[Setting, Scores]) -> dict[str, np.ndarray]:
    """Mean train and test accuracy of all models compared, by their names."""
    accuracy: dict[str, np.ndarray] = {}
    # plain sorts first: the model as it is used
    for setting in sorted(
        {setting for contrast in wanted for _, side in contrast.terms for setting in side},
        key=lambda setting: (setting.recipe, setting),
    ):
        accuracy.setdefault(setting.models, settings[setting].accuracy.mean(0))
    return accuracy


def _apart(wanted: list[Contrast], settings: dict[Setting, Scores]) -> float:
    """Largest difference of test accuracy inside a contrast of different models; NaN without
    one.
    """
    accuracy = _accuracy(wanted, settings)
    models = [
        {setting.models for _, side in contrast.terms for setting in side} for contrast in wanted
    ]
    return max(
        (
            float(np.ptp([accuracy[name][1] for name in names]))
            for names in models
            if len(names) > 1
        ),
        default=np.nan,
    )


def _caveats(wanted: list[Contrast], settings: dict[Setting, Scores]) -> Iterator[str]:
    """Train and test accuracy of everything compared, how unequal, and too few targets."""
    yield "train / test accuracy " + ", ".join(
        f"{name} {train:.3f} / {test:.3f}"
        for name, (train, test) in _accuracy(wanted, settings).items()
    )
    if (apart := _apart(wanted, settings)) > 0:
        yield f"compared at test accuracies up to {apart:.3f} apart"
    if wanted and one_pair(settings[wanted[0].first]):
        yield "one pair of targets does not show training randomness: nothing is decided"
