"""Is it real? Membership dealt anew, a design that leaks by counting, and zeros that ties make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import pandas as pd

from mia_nb import attacks, metrics, plots
from mia_nb.metrics.null import redraw
from mia_nb.metrics.protocol import units
from mia_nb.types import Scores, Signals
from mia_nb.widgets.explorer import Explorer, View, buttons, dropdown, message, steps
from mia_nb.widgets.figure import plain
from mia_nb.widgets.stored import Source

TITLE, LATTICE = "Is it real?", "The lattice"
HELD, LEFT = "mate held out", "leave one out"
DESIGNS = {
    HELD: "the target and its mate are no references",
    LEFT: "only the target is left out: its mate is a reference",
}
TARGETS = 4  # two pairs: what a redrawn world is scored on
SIZES = (4, 8, 16)
DRAWS = 100


def redrawn(
    signals: Signals, attack: str, *, keep_mate: bool = False, draws: int = DRAWS, seed: int = 0
) -> tuple[float, np.ndarray]:
    """(real, drawn (draws,)): mean AUC of the first two pairs' targets with the real members, and with members dealt anew.

    If membership changed no signal, the real mask would be one of the redrawn ones: p = (1 + #{drawn >= real}) / (draws + 1).
    keep_mate=True leaves the target's exact complement among its references. Errors as `attacks.score`.
    """
    real, drawn = _redrawn(signals, attack, keep_mate, draws, seed)
    return real, drawn.copy()


@lru_cache(32)
def _redrawn(
    signals: Signals, attack: str, keep_mate: bool, draws: int, seed: int
) -> tuple[float, np.ndarray]:
    targets = _targets(signals)

    def mean_auc(world: Signals) -> float:
        one = attacks.score(attack, world, targets=targets, keep_mate=keep_mate)
        known = [
            (v[~np.isnan(v)], m[~np.isnan(v)]) for v, m in zip(one.value, one.member, strict=True)
        ]
        return float(np.mean([metrics.auc(*pair) for pair in known]))

    rng = np.random.default_rng(seed)
    worlds = [mean_auc(replace(signals, member=mask)) for mask in redraw(signals, draws, rng)]
    return mean_auc(signals), np.array(worlds)


def _targets(signals: Signals) -> np.ndarray:
    unit = units(signals.member[:, ~signals.population])
    return np.flatnonzero(unit < max(1, TARGETS // 2))


def null(
    source: Source,
    *,
    names: Sequence[str] = ("rmia", "loss", "lira_global", "nig"),
    draws: int = DRAWS,
) -> Explorer:
    """The real AUC beside those of worlds in which membership was dealt anew, in two designs and with few or many models.

    With the mate held out the redrawn worlds lie around 1/2. Left among the references it makes a signal out of nothing: in an
    exactly balanced design the number of a sample's IN references says whether the target saw it.
    """
    most = len(source.signals.margin)
    sizes = [size for size in SIZES if size <= most]
    if not sizes:
        return message(
            TITLE, f"{source.label} has {most} models; redrawing membership needs 4 or more"
        )

    @cache
    def measured(attack, design, models):
        few = source.signals if models == most else source.signals.select(models=slice(0, models))
        return redrawn(few, attack, keep_mate=design == LEFT, draws=draws)

    @cache
    def picture(attack, design, models):
        return plain(
            plots.null_band(*measured(attack, design, models), name=attack, design=DESIGNS[design])
        )

    def draw(attack, design, models) -> View:
        real, drawn = measured(attack, design, models)
        middle, error = drawn.mean(), drawn.std(ddof=1) / np.sqrt(len(drawn))
        p = (1 + int((drawn >= real).sum())) / (len(drawn) + 1)
        off = abs(middle - 0.5) > 4 * error + 1e-12
        n0 = int((~source.signals.member[0, source.audited]).sum())
        verdict = f"the real members give {real:.3f}, p = {p:.3g}"
        if off:
            verdict = (
                f"this design makes {middle:.3f} out of nothing: no AUC from it can be believed"
            )
        ends = np.quantile(drawn, [0.025, 0.975])
        sentence = f"{attack} on nothing: AUC {middle:.3f} (95 % of {len(drawn)} worlds: {ends[0]:.3f}-{ends[1]:.3f}); {verdict}"
        sentence += f"; {models} models, {len(_targets(source.signals.select(models=slice(0, models))))} targets, n0 = {n0:,}"
        row = {
            "attack": attack,
            "design": design,
            "models": models,
            "real AUC": f"{real:.4f}",
            "on nothing": f"{middle:.4f}",
        }
        row |= {
            "its standard error": f"{error:.4f}",
            "p": f"{p:.3g}",
            "verdict": "FAIL" if off else "pass",
        }
        note = f"{DESIGNS[design]}; a redrawn world keeps every answer and deals the members anew"
        return View(sentence, {"null": picture(attack, design, models)}, pd.DataFrame([row]), note)

    controls = {
        "attack": dropdown("attack", list(names), names[0]),
        "design": buttons("design", list(DESIGNS), HELD),
        "models": steps("models", sizes, sizes[-1]),
    }
    return Explorer(TITLE, controls, draw, rows=[["null"]])


def lattice_scores(source: Source, references: int) -> dict[str, Scores]:
    """Attack-R as a share of beaten references, and as a difference, on the first two pairs, each with so many references."""
    signals = source.signals
    unit = units(signals.member[:, ~signals.population])
    targets = np.flatnonzero(unit == 0)
    rows = np.concatenate([targets, np.flatnonzero(unit > 0)[:references]])
    if len(rows) < len(targets) + references:
        raise ValueError(
            f"{references} references: {source.label} leaves {len(rows) - len(targets)}"
        )
    few = signals.select(models=rows)
    names = {"attack_r (share beaten)": "attack_r_lattice", "attack_r (difference)": "attack_r"}
    return {
        words: attacks.score(name, few, targets=range(len(targets)))
        for words, name in names.items()
    }


def lattice(source: Source, *, rate: float = 0.05) -> Explorer:
    """Attack-R with few references: its score counts the references that the target beats, so that k of them give k + 1 values.

    Beside it the same comparison as a difference of margins. `rate`: the share of false alarms at which both are quoted.
    """
    most = len(source.signals.margin) - 2
    budgets = [k for k in (2, 4, 8, 14, 16, 32, 64) if k <= most]
    if not budgets:
        return message(
            LATTICE, f"{source.label} has {most + 2} models; the lattice needs 4 or more"
        )
    scored = cache(lambda references: lattice_scores(source, references))
    roc = cache(lambda references: plain(plots.roc_pair(scored(references))))
    bars = cache(
        lambda references: plain(
            plots.levels(*(getattr(next(iter(scored(references).values())), part)[0] for part in ("value", "member")),
                         name=f"attack_r with {references} references")
        )
    )  # fmt: skip

    def draw(references) -> View:
        rows, key = [], f"TPR at {rate:.0%}"
        for words, one in scored(references).items():
            at = metrics.tpr_at(one.value[0], one.member[0], rate)
            row = {
                "attack": words,
                "different scores": len(np.unique(one.value[0])),
                "smallest FPR above 0": f"{at.fpr_floor:.4f}",
            }
            row |= {
                key: f"{at.tpr:.4f} [{at.low:.4f}, {at.high:.4f}]",
                "ties": f"{metrics.tie_mass(one.value[0]):.3f}",
            }
            rows.append(
                row | {"AUC": f"{metrics.auc(one.value[0], one.member[0]):.3f}", "n0": at.n0}
            )
        first, second = rows
        sentence = f"{references} references: {first['different scores']} different scores, none accuses fewer than "
        sentence += f"{100 * float(first['smallest FPR above 0']):.1f} % of non-members; {key} is {first[key]}, "
        sentence += f"of the difference {second[key]}, n0 = {first['n0']:,}"
        figures = {"levels": bars(references), "roc": roc(references)}
        note = "table: the first target; curves: a target and its mate; a zero made by ties is no protection"
        return View(sentence, figures, pd.DataFrame(rows), note)

    controls = {"references": steps("references", budgets, 4 if 4 in budgets else budgets[0])}
    return Explorer(LATTICE, controls, draw, rows=[["levels"], ["roc"]])
