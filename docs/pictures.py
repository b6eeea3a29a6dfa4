"""The README's pictures, drawn by the project itself: python docs/pictures.py [results folder with
the demo's pool]; `python docs/pictures.py explorers` photographs the explorers alone, `families`
draws what was found of the shipped families alone, `stored` what stored states cost, `activity`
what the activity of spiking networks adds.

Needs Chromium ($CHROMIUM, default /usr/bin/chromium) and playwright.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pandas as pd
import plotly.graph_objects as go
from playwright.sync_api import Browser, Playwright, sync_playwright
from results import along_training

from mia_nb import (
    accounting,
    attacks,
    auditing,
    data,
    examples,
    metrics,
    plots,
    query,
    studies,
    training,
)
from mia_nb.plots import style
from mia_nb.types import Recipe

HERE = Path(__file__).parent


def launched(playwright: Playwright) -> Browser:
    return playwright.chromium.launch(
        executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
        args=["--no-sandbox", "--disable-gpu"],
    )


def screenshot(
    figures: list, path: Path, widths: list[int], height: int, *, below: bool = False
) -> None:
    """One picture of plotly figures side by side, or one below the other, on white."""
    sized = [
        figure.update_layout(width=w, height=height)
        for figure, w in zip(figures, widths, strict=True)
    ]
    size = {"width": sum(widths), "height": height}
    if below:
        size = {"width": max(widths), "height": height * len(figures)}
    direction = "column" if below else "row"
    parts = [
        f.to_html(full_html=False, include_plotlyjs=i == 0, config={"staticPlot": True})
        for i, f in enumerate(sized)
    ]
    page_text = (
        "<meta charset='utf-8'><body"
        f" style='margin:0;background:white;display:flex;flex-direction:{direction}'>"
        + "".join(parts)
    )
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        (Path(folder) / "page.html").write_text(page_text)
        browser = launched(playwright)
        page = browser.new_page(viewport=size, device_scale_factor=1.5)
        page.goto(f"file://{folder}/page.html")
        page.wait_for_function(f"document.querySelectorAll('.main-svg').length >= {len(figures)}")
        page.wait_for_timeout(500)
        page.screenshot(path=path)
        browser.close()


def front() -> None:
    """What the README opens with: ROC curves and scores of one shipped pool."""
    signals = examples.load_example("cifar10/resnet14-long")
    scores = {name: attacks.score(name, signals) for name in ("rmia", "attack_r", "loss")}
    figures = [plots.roc_pair(scores), plots.histogram(scores["rmia"], target=0, scale="rank")]
    screenshot(figures, HERE / "front.png", [900, 900], 360, below=True)


FAMILIES = {  # family: {epochs, or time steps: the shipped pool}
    "fast network": {
        1: "fast-1-epoch",
        2: "fast-2-epochs",
        3: "fast-3-epochs",
        4: "fast-short",
        8: "fast-small",
        16: "fast-long",
    },
    "twice as wide": {10: "fast-wide"},
    "that, GELU, max pooling": {10: "fast-gelu"},
    "label smoothing": {8: "fast-smoothing"},
    "RelaxLoss": {8: "fast-relaxloss"},
    "last group an ODE": {8: "fast-ode"},
    "last group an SDE": {8: "fast-sde"},
    "spiking, converted": {4: "fast-converted-T4"},
    "spiking, hybrid": {1: "fast-hybrid-T1", 2: "fast-hybrid-T2", 4: "fast-hybrid-T4"},
    "spiking from the start": {1: "fast-direct-T1", 4: "fast-direct-T4"},
    "ResNet14": {12: "resnet14-short", 24: "resnet14", 48: "resnet14-long"},
    "ODENet": {8: "odenet"},
    "SDENet": {8: "sdenet"},
    "DP-SGD": {12: "dp-sgd"},
}


def families() -> None:
    """What RMIA finds of the shipped families against their accuracy, 8 models of each."""
    runs: dict[str, dict] = {}
    for family, pools in FAMILIES.items():
        runs[family] = {}
        for epochs, pool in pools.items():
            signals = examples.load_example(f"cifar10/{pool}").select(models=slice(0, 8))
            runs[family][epochs] = {"rmia": attacks.score("rmia", signals)}
    figure = plots.against(
        metrics.frontier_means(metrics.frontier(runs, n_resamples=0)),
        "test_acc",
        "auc",
        line="family",
        label="epoch",
        title="The longer a network is trained, the more each point of accuracy leaks",
        caption="8 models each, RMIA, bars 95 %; numbers: epochs, time steps of spiking networks;"
        " right and down is better",
    )
    screenshot([figure], HERE / "results-families.png", [1000], 520)


STORED = "stored states of classes that are not public"  # a section of benchmarks/RESULTS.md
ROW = r"\| (\d) \| ([^|]+) \| ([\d.]+) ± ([\d.]+) %"  # epsilon, way, accuracy, half its interval


def stored() -> None:
    """Accuracy of three ways to train a head at equal epsilon, on two data sets, as measured."""
    text = (HERE.parent / "benchmarks" / "RESULTS.md").read_text()
    section = text.partition(STORED)[2].partition("\n## ")[0]
    _, *tables = section.split("| epsilon | way |")
    figures = []
    for name, table in zip(("digits", "CIFAR-10"), tables, strict=True):
        rows = pd.DataFrame(re.findall(ROW, table), columns=["epsilon", "way", "value", "half"])
        numbers = rows[["epsilon", "value", "half"]].astype(float)
        figure = go.Figure()
        for i, way in enumerate(rows["way"].unique()):
            part = numbers[rows["way"] == way]
            look = style.look(i)
            figure.add_scatter(
                x=part["epsilon"],
                y=part["value"],
                error_y={"array": part["half"], "thickness": 1.2},
                name=way,
                line={"color": look.colour, "dash": look.dash},
                marker={"symbol": look.symbol, "size": 8},
            )
        figure.update_xaxes(type="log", tickvals=[1, 2, 4, 8], title="epsilon at delta 1e-5")
        figure.update_yaxes(title="accuracy, %", range=[0, 102])
        note = "one record added or removed; 8 models, 95 % intervals"
        legend = {"orientation": "h", "y": -0.22}
        figures.append(style.finish(figure, f"{name}: heads at equal epsilon", note, legend=legend))
    screenshot(figures, HERE / "private-sde.png", [560, 560], 460)


ACTIVITY = {  # data: a section of benchmarks/RESULTS.md
    "digits": "spikes as signals on digits, without each network's habits",
    "CIFAR-10": "spikes as signals on CIFAR-10 (",
}
SEEN = ("answers", "power", "counts", "times", "membranes", "all")
GAINS = r"\n([^\n]+): with the activity less without it\n.*?\n\| auc \|([^\n]+)"
DIFFERENCE = r"([+-][\d.]+) \[([+-][\d.]+), ([+-][\d.]+)\]"


def activity() -> None:
    """What an attacker gains in AUC who sees a spiking network at work, as measured."""
    text = (HERE.parent / "benchmarks" / "RESULTS.md").read_text()
    rows = []
    for name, title in ACTIVITY.items():
        section = text.partition(title)[2].partition("\n## ")[0]
        for family, line in re.findall(GAINS, section, re.DOTALL):
            for see, gain in zip(SEEN, re.findall(DIFFERENCE, line), strict=True):
                rows.append((f"{name}: {family}", see, *map(float, gain)))
    table = pd.DataFrame(rows, columns=["family", "see", "value", "low", "high"])
    table = table[table["see"].isin(("answers", "all"))]
    names = {"answers": "answers after each step", "all": "all that spikes"}
    families = list(dict.fromkeys(table["family"]))[::-1]
    figure = go.Figure()
    for i, (see, part) in enumerate(table.groupby("see", sort=False)):
        look = style.look(i)
        figure.add_scatter(
            x=part["value"],
            y=[families.index(family) + 0.14 * (1 - 2 * i) for family in part["family"]],
            error_x={
                "array": part["high"] - part["value"],
                "arrayminus": part["value"] - part["low"],
                "thickness": 1.5,
            },
            mode="markers",
            name=names[see],
            marker={"color": look.colour, "symbol": look.symbol, "size": 9},
        )
    figure.add_vline(x=0, line=style.DOTTED)
    figure.update_xaxes(title="AUC with the activity less AUC of the answer alone")
    figure.update_yaxes(tickvals=list(range(len(families))), ticktext=families)
    resolved = table[(table["low"] > 0) | (table["high"] < 0)]
    sentence = (
        f"What activity adds to the answer: {len(resolved)} of {len(table)} intervals leave out 0"
    )
    note = "intervals hold together for all comparisons of each data set"
    height = 200 + 38 * len(families)
    style.finish(figure, sentence, note, height=height, legend=style.BELOW)
    screenshot([figure.update_layout(margin_l=320)], HERE / "activity.png", [1000], height)


def main(root: str = "results") -> None:
    front()
    families()
    images = data.load("digits")
    signals = query(training.train_pool(Recipe(), images, root=root), images)
    scores = {name: attacks.score(name, signals) for name in attacks.suite(7)}
    table = metrics.summary(
        scores, self_test=metrics.self_test(signals, attacks.suite(7), n_resamples=50)
    )
    screenshot([plots.roc_pair(scores), plots.summary(table)], HERE / "roc.png", [1000, 800], 520)
    print(metrics.readable(table).to_string())
    spiking(images, root)
    equations(images, root)
    privacy(images, root)
    explorers()


def explorers(port: int = 8844) -> None:
    """Two explorers as `mia-nb explore` opens them on the shipped signals."""
    size = {"width": 1366, "height": 768}
    with tempfile.TemporaryDirectory() as empty, sync_playwright() as playwright:
        options = (f"--port={port}", f"--results={empty}")
        served = subprocess.Popen(
            [sys.executable, "-m", "mia_nb.cli", "explore", "--no-browser", *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        address = served.stdout.readline().split()[0]  # with its token
        browser = launched(playwright)
        try:
            page = browser.new_page(viewport=size)
            page.goto(address, timeout=120_000)
            for tab, name in (
                ("Scores and ROC", "explore-scores"),
                ("One sample, two worlds", "explore-sample"),
            ):
                page.locator(".lm-TabBar-tab", has_text=tab).click(timeout=120_000)
                page.locator("[role=status]:visible").first.wait_for(timeout=120_000)
                page.locator("[role=figure][data-drawn]:visible").first.wait_for(timeout=120_000)
                page.wait_for_timeout(3000)
                page.locator(".jupyter-widget-tab").first.evaluate("tabs => tabs.scrollIntoView()")
                page.screenshot(path=HERE / f"{name}.png")
        finally:
            browser.close()
            served.terminate()
            served.wait()


def spiking(images, root: str) -> None:
    """Accuracy and risk against time steps, for the spiking pools of the demo."""
    networks = training.train_pool(Recipe(), images, root=root)
    tuned = training.hybrid_pools(networks, images, epochs=(4, 2, 2, 2), lr=0.02, batch=32)
    spikes = {"base": "tinycnn", "base_args": {}, "timesteps": 4}
    direct = training.train_pool(
        Recipe(model="snn", model_args=spikes, epochs=8), images, root=root
    )
    pools = {
        ("network", 0): networks,
        **{("hybrid", T): pool for T, pool in tuned.items()},
        ("direct", 4): direct,
    }
    right, risk = [], []
    for (line, T), pool in pools.items():
        scores = attacks.score("rmia", query(pool, images))
        place = {"line": line, "timesteps": T}
        right.append(metrics.accuracies(scores).loc["test"].to_dict() | place)
        risk.append(
            metrics.intervals(scores, ()).loc["auc", ["value", "low", "high"]].to_dict() | place
        )
    right, risk = pd.DataFrame(right), pd.DataFrame(risk)
    table = pd.concat([right.assign(panel="test accuracy"), risk.assign(panel="AUC of RMIA")])
    figure = plots.lines(
        table[table["timesteps"] > 0],
        "timesteps",
        panel="panel",
        levels=table[table["timesteps"] == 0],
        log=True,
        x_title="time steps T",
        title="Test accuracy against time steps, beside the risk it comes with",
        caption="bars and bands 95 %; dashed: the ordinary network",
    )
    screenshot([figure], HERE / "spiking.png", [1100], 460)


def equations(images, root: str) -> None:
    """Leakage along training and against the number of queries, for the demo's networks of
    differential equations.
    """
    families, kept = [{"model": "resnet14"}, {"model": "odenet"}, {"model": "sdenet"}], [2, 4]
    recipe = Recipe(num_models=8, epochs=6, snapshots=kept)
    pools = training.family_pools(
        families, recipe, images, model_args={"width": 8}, flow={"steps": 4}, root=root
    )
    runs = {}
    for pool in pools:
        signals = {epoch: query(pool.at(epoch), images) for epoch in [*kept, 6]}
        name = studies.setting(signals[6].info, "").label
        runs[name] = {
            e: {word: attacks.score(word, one) for word in ("rmia", "loss")}
            for e, one in signals.items()
        }
    noisy, quiet = (
        query(pools[2], images, queries=16),
        query(pools[2], images, noise=False),
    )
    level = metrics.intervals(attacks.score("rmia", quiet), ()).loc[["auc"]]
    table = metrics.query_curve(noisy)
    curve = plots.lines(
        table[table["metric"] == "auc"].assign(line=name),
        "R",
        levels=level.assign(line=f"{name}, noise off"),
        log=True,
        x_title="queries R, averaged by the attacker",
        y_title="AUC",
        title="What further queries find, and the same networks with their noise off (dashed)",
        caption="bars and band 95 %; open, at ∞: extrapolated to infinitely many queries",
    )
    along = along_training(metrics.frontier(runs))
    screenshot([along, curve], HERE / "equations.png", [850, 750], 460)


def privacy(images, root: str) -> None:
    """The ladder of the demo's stochastic, undefended and DP-SGD networks, and what its defenses
    leave and cost.
    """
    recipe = Recipe(num_models=8, split="bernoulli", population=297, epochs=6, snapshots=[1, 2, 4])
    clipped = {
        "defense": "dp_sgd",
        "epsilon": 8.0,
        "batch": 128,
        "epochs": 10,
        "lr": 1.0,
        "schedule": "cosine",
    }
    families = [
        {"model": "sdenet", "model_args": {"k": 0.35355339, "T": 0.125}},
        {},
        clipped,
        {"defense": "relaxloss", "defense_args": {"target": 0.3}},
    ]
    families = accounting.aimed(families, recipe, members=(len(images.y) - 297) // 2, delta=1e-5)
    sizes = {"model_args": {"width": 16}, "flow": {"width": 8, "steps": 4}}
    pools = training.family_pools(families, recipe, images, root=root, **sizes)
    networks, ladders = {}, {}
    for pool in pools:
        signals = query(pool, images, queries=16 if pool is pools[0] else 1)
        network = studies.setting(signals.info)
        name = network.label
        networks[network] = {word: attacks.score(word, signals) for word in ("rmia", "loss")}
        spent = pool.recipe.defense_args if pool.recipe.defense == "dp_sgd" else None
        ladders[name] = auditing.ladder(
            delta=1e-5,
            flow=signals.info.get("flow"),
            nominal=pool.sampling,
            dp_sgd=spent and {"noise_multiplier": spent["noise_multiplier"], **pool.sampling},
            audited=auditing.audit(auditing.score_split("rmia", signals), delta=1e-5),
        )
    masked = query(pools[1], images, output="memguard")
    networks[studies.setting(masked.info)] = {
        word: attacks.score(word, masked) for word in ("rmia", "loss")
    }
    three = dict(list(ladders.items())[:3])
    screenshot([plots.ladder(three)], HERE / "ladder.png", [1100], 760)
    left = []
    for network, found in networks.items():
        table = metrics.summary(found)
        row = {"line": network.label}
        for metric in ("auc", "test_acc", "gap"):
            strongest = metrics.by_attack(table, metric).loc["max"]
            row |= {metric: strongest["value"]}
            row |= {f"{metric}_{end}": strongest[end] for end in ("low", "high")}
        left.append(row)
    left = pd.DataFrame(left)
    accurate, widest = left.loc[1, "test_acc"], left["gap"].max()  # of the undefended, of all
    along = plots.against(
        left,
        "test_acc",
        "auc",
        title="What defenses of a tinycnn leave, against test accuracy",
        caption="strongest attack on each; bars 95 %; shaded: at most a point less accurate",
    )
    shade = {"fillcolor": "grey", "opacity": 0.14, "line_width": 0}
    along.add_vrect(x0=accurate - 0.01, x1=accurate + 0.01, **shade)
    along.add_hline(y=0.5, line_width=1, line_color="grey")
    overfit = plots.against(
        left,
        "gap",
        "auc",
        title="The same against the gap",
        caption="dotted: AUC 1/2 + gap/2, accuracy alone; MemGuard: by these attacks",
    )
    line = {"dash": "dot", "color": "grey"}
    overfit.add_shape(type="line", x0=0, y0=0.5, x1=widest, y1=0.5 + widest / 2, line=line)
    screenshot([along, overfit], HERE / "defenses.png", [600, 600], 480)


if __name__ == "__main__":
    if sys.argv[1:] == ["explorers"]:
        explorers()
    elif sys.argv[1:] == ["families"]:
        families()
    elif sys.argv[1:] == ["stored"]:
        stored()
    elif sys.argv[1:] == ["activity"]:
        activity()
    else:
        main(*sys.argv[1:])
