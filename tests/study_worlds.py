"""The worlds on which verdicts and comparisons of studies are frozen (tests/golden/studies)."""

from __future__ import annotations

import test_recipes as recipes
import test_studies_defenses as defended
import test_studies_nsde as flow
import test_studies_privacy as privacy
import test_studies_snn as snn
from attack_worlds import gaussian

from mia_nb import attacks

DRAWS = 40


def snn_worlds() -> dict:
    """{name: settings with their scores} of the spiking study."""
    claimed = snn.study(snn.as_claimed, snn.rising, samples=300)
    opposite = snn.study(
        lambda s: (
            {"rmia": 0.8, "attack_r": 1.1, "attack_p": 1.4}[s.attack]
            * (0.6 if s.input_dropout else 1)
            * (1.5 if s.references == "ann" else 1)
            * (2.0 if s.training == "direct" else 1.6 - 0.25 * s.timesteps)
        ),
        lambda s: 0.9 - 0.02 * s.timesteps,
        samples=300,
    )
    counted = {s._replace(attack="rmia_count"): x for s, x in claimed.items() if s.attack == "rmia"}
    signals = gaussian(8, 400, delta=1.5, population=3)
    few = {
        snn.Cell("ann", attack=name): attacks.score(name, signals)
        for name in ("rmia", "rmia_count")
    }
    return {
        "claimed": claimed,
        "opposite": opposite,
        "aligned": snn.with_aligned(claimed, 1.0) | counted,
        "no ANN dropout": {s: x for s, x in claimed.items() if s.training or not s.input_dropout},
        "one pair": snn.study(snn.as_claimed, snn.rising, targets=2, samples=300),
        "few population": few,
    }


def flow_worlds() -> dict:
    """{name: (settings with their scores, frontier or None)} of neural ODEs and SDEs."""
    everything = flow.study(flow.as_claimed, flow.overfit)
    both = flow.study(flow.as_claimed, flow.overfit, attacks=("rmia", "lira_global"))
    joint = flow.study(flow.as_claimed, settings=flow.ASKED, attacks=("lira_joint",))
    unequal = flow.study(
        flow.as_claimed,
        lambda s: (0.98, 0.86) if s.model == "resnet14" else (0.9, 0.82),
        settings=[flow.RESNET, flow.ODENET, *flow.ASKED, *flow.NOISES],
    )
    opposite = flow.study(
        lambda s: 1.2 - flow.as_claimed(s) + 0.3 * (1 - s.T),
        lambda s: (0.85, 0.8) if s.model == "resnet14" else (0.98, 0.8),
    )
    near = [flow.SDENET, flow.SDENET._replace(k=0.5001), flow.SDENET._replace(k=0.125**0.5, T=0.5)]
    solvers = [
        flow.ODENET._replace(method="rk4"),
        flow.ODENET._replace(steps=8),
        flow.SDENET._replace(method="rk4"),
        flow.FlowCell("odenet64", 1, "rk4"),
        flow.FlowCell("sonode", 1, "rk4"),
    ]
    more = flow.curves_of(0.5, ("ODENet", "SDENet sigma=2"), info={"queries": 4})
    return {
        "claimed": (everything, None),
        "two attacks": (both | joint, None),
        "opposite": (opposite, None),
        "leaky, at equal accuracy": (unequal, flow.curves_of(0.5)),
        "alike, at equal accuracy": (unequal, flow.curves_of(0.0)),
        "samples not drawn": (unequal, flow.curves_of(0.5, n_resamples=0)),
        "fewer queries": (unequal, more),
        "below one half": (flow.study(lambda s: -0.3, settings=[flow.LARGE]), None),
        "almost one sigma": (flow.study(lambda s: 1.0 + 100 * (s.k - 0.5), settings=near), None),
        "solvers": (
            flow.study(
                flow.as_claimed, settings=[flow.ODENET, flow.FlowCell("odenet64"), *solvers]
            ),
            None,
        ),
        "variants": (flow.study(flow.as_claimed, settings=flow.VARIANTS[:3]), None),
        "one pair": (flow.study(flow.as_claimed, flow.overfit, targets=2), None),
    }


def privacy_worlds() -> dict:
    """{name: (settings with their scores, ladders)} of defenses and accounting."""
    accuracy = {privacy.DP: (0.74, 0.74), privacy.SDE: (0.82, 0.82)}
    dp_sgd = {"noise_multiplier": 2.0, "sample_rate": 512 / 25_000, "steps": 14_700}
    alike = privacy.world({privacy.DP: 0.05, privacy.SDE: 0.05}, accuracy)
    once = privacy.SDE._replace(queries=1)
    leaky = privacy.world({privacy.DP: 0.05, privacy.SDE: 0.6, once: 0.0}, accuracy)
    tied = privacy.memguarded(0.12, "correctness") | privacy.world(
        {privacy.MEMGUARD: 0.5}, targets=32, attacks=("lira_per_sample",)
    )
    quiet = privacy.world({privacy.SDE: 0.05, privacy.QUIET: 1.6}, attacks=("rmia", "lira_global"))
    return {
        "alike": (alike, {"ResNet-14, DP-SGD": privacy.ladder(490, dp_sgd)}),
        "leaky": (leaky, {"SDENet sigma=2": privacy.ladder(490)}),
        "tied": (tied, None),
        "quiet": (quiet, {"this network": privacy.ladder()}),
        "below": (privacy.memguarded(-0.12, "correctness"), None),
        "four targets": (
            privacy.world({privacy.SDE: 1.6, privacy.DP: 0.0}, samples=2200, targets=4),
            None,
        ),
        "one target": (privacy.world({privacy.SDE: 1.6}, targets=1, pairs=False), None),
    }


def recipe_worlds() -> dict:
    """{name: settings with their scores} of recipes."""
    others = {
        "plain": recipes.Recipe(),
        "crop": recipes.Recipe(augment="crop+flip"),
        "flat": recipes.Recipe(schedule="constant"),
        "other": recipes.Recipe(augment="crop", epochs=40, lr=0.05),
    }
    strength = {"plain": 0.8, "crop": 0.2, "flat": 0.8, "other": 0.1}
    return {
        "rising": recipes.of({"5": 0.1, "20": 0.4, "80": 0.8}, recipes.LENGTHS),
        "level": recipes.of({"5": 0.4, "20": 0.4, "80": 0.4}, recipes.LENGTHS, same=True),
        "others": recipes.of(strength, others, same=True),
    }


def printed_worlds() -> dict:
    """{name: (study, settings with their scores)} for the tables of printed numbers."""
    two_blocks = flow.RESNET._replace(blocks=2)
    own = [two_blocks, flow.ODENET, flow.SDENET._replace(queries=16), flow.SDENET, *flow.VARIANTS]
    tuned = defended.DefenseCell("resnet14", 3, defense="l2", options="weight 0.01")
    return {
        "snn": ("snn", snn.study(snn.as_claimed, snn.rising, samples=400, targets=4)),
        "nsde": (
            "nsde",
            flow.study(flow.as_claimed, settings=own, attacks=("lira_per_sample", "rmia")),
        ),
        "defenses": (
            "privacy",
            {
                defended.DP: defended.scores(0.7),
                defended.SDE: defended.scores(0.1, accuracy=(0.82, 0.82)),
                defended.MEMGUARD: defended.scores(value=defended.of_labels),
                tuned: defended.scores(0.2),
            },
        ),
    }
