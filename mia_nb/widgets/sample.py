"""One sample, two worlds: the outputs of models that trained on the sample and of models that did
not, and which of them the target resembles.

A sample has a number, a column and an index, see `stored.Source`.
"""

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import pandas as pd
from scipy.special import expit

from mia_nb import attacks, metrics
from mia_nb.attacks.margins import over_queries
from mia_nb.checks import quantity
from mia_nb.metrics.table_text import in_digits
from mia_nb.plots import samples
from mia_nb.plots.scores import row_of
from mia_nb.plots.style import LINES
from mia_nb.widgets.controls import (
    END,
    attack_options,
    buttons,
    chooser,
    count,
    dropdown,
    number,
)
from mia_nb.widgets.evidence import (
    VARIANCES,
    Evidence,
    SampleEvidence,
    evidence_of,
    of_sample,
    references,
)
from mia_nb.widgets.explorer import Explorer, View, message
from mia_nb.widgets.figure import with_layout
from mia_nb.widgets.losses import losses_picture
from mia_nb.widgets.stored import NOTHING, Source, list_of_sources, named
from mia_nb.widgets.words import NO_IMAGES, NOT_MEASURABLE, number_text, remarks, with_interval

TITLE = "One sample, two worlds"
THUMBNAILS = 24
RING = {  # scattergl, as browsers draw scattergl points above all other traces
    "type": "scattergl",
    "mode": "markers",
    "marker": {"color": LINES[2], "symbol": "circle-open", "size": 17, "line": {"width": 3}},
    "hoverinfo": "skip",
    "unselected": {"marker": {"opacity": 1}},
}


def sample(sources: Sequence[Source]) -> Explorer:
    """A sample's margin in the worlds with and without it, fitted from k references a side, and the
    target's own margin.

    Parameters:
        sources: stored results to choose a pool from, as `widgets.sources` lists them

    Returns:
        An `Explorer`; shown in a notebook, `set(control=value)` moves it, `view` holds what it
        shows, `csv()` exports it. Without sources a message that says what to run.

    The sample whose worlds differ most comes first. A click, or a number in the pool's images,
    chooses another; a lasso shows the images of a subset. References are added in pairs, without
    the target's complementary model, as in `attacks.score`; in designs without pairs k stands for
    2k models. Two densities are fitted to the margin averaged over queries (of the last time step
    for "steps"): the Gaussians of `lira` with the chosen variance, and Student's t of `nig`.
    Intervals are 95 %, given these references: v is scaled inverse chi-squared, and m given v is
    normal with variance v / n.

    Caveat: what one ratio proves depends on how often it errs, see `scores`.
    """
    pools = named(list_of_sources(sources))
    if not pools:
        return message(TITLE, NOTHING)

    def largest_k(pool: str, target: int) -> int:
        """Half the number of references, rounded up."""
        return math.ceil(len(references(pools[pool], target)) / 2)

    def first_sample(pool: str, target: int, sample: int) -> int:
        """The chosen sample if this pool has it, else the one whose worlds differ most."""
        source = pools[pool]
        if sample in source.numbers:
            return sample
        fit = evidence_of(source, target, largest_k(pool, target), "shrunk").student
        centre_in, centre_out = fit.centre
        _, scale_out = fit.scale
        distance = ((centre_in - centre_out) / scale_out)[source.audited]
        index = np.nanargmax(distance) if np.isfinite(distance).any() else 0
        return int(source.numbers[index])

    def draw(
        pool: str,
        target: int,
        attack: str,
        sample: int,
        k: int,
        variance: str,
        subset: tuple[int, ...],
    ) -> View:
        """The two worlds of the sample, and its place among all others."""
        source = pools[pool]
        index = source.audited_index(sample)
        column = int(source.audited[index])
        x, y, member = scatter_values(source, target, attack)
        is_member = bool(member[index])
        models = references(source, target)
        evidence = evidence_of(source, target, k, variance)
        about = of_sample(evidence, column, variance)
        in_lasso = np.flatnonzero(np.isin(source.numbers, subset))

        scatter = scatter_picture(source, target, attack)
        figures = {
            "scatter": with_ring(scatter, x[index], y[index], sample),
            "margins": margins_picture(source, evidence, models, column, is_member),
            "image": image_picture(source, target, column),
            "traces": losses_picture(source, tuple(models.tolist()), column, target),
            "subset": lasso_picture(source, target, in_lasso),
        }
        label = source.class_of(column)
        row = {
            "who": f"sample {sample}",
            "label": label,
            **number_cells(about),
            "score": number_text(y[index], ".4g"),
            "non-members as high": non_members_as_high(evidence, source, member, index),
            "member": "yes" if is_member else "no",
        }
        if len(in_lasso):
            row["lasso"] = quantity(len(in_lasso), "sample")
        facts = f"labelled {label}, target {right_or_wrong(source, target, column)}"
        membership = "a member" if is_member else "a non-member"
        sentence = f"Sample {sample} ({facts}): {result_words(about, k)}; is {membership}"
        return View(
            sentence,
            figures,
            pd.DataFrame([row]),
            note(source, evidence, k, attack),
            margins_of_models(source, sample),
        )

    # options that depend on the pool are filled in by `follow`, whose errors the explorer shows
    controls = {
        "pool": chooser("pool", pools),
        "target": dropdown("target", [0], 0),
        "attack": dropdown("attack"),
        "sample": number("sample", -1),
        "k": count("k a side"),
        "variance": buttons("variance", list(VARIANCES), "shrunk"),
    }
    follow = {  # the explorer passes values of controls by the names of a function's parameters
        "target": {"options": lambda pool: pools[pool].targets[1:]},
        "attack": {"options": lambda pool: attack_options(pools[pool].attacks())},
        "k": {"max": largest_k, "value": lambda pool: END},
        "sample": {"value": first_sample},
    }
    return Explorer(
        TITLE,
        controls,
        draw,
        question="What would this model output if it had not seen the image?",
        rows=[["scatter", "margins"], ["image", "traces"], ["subset"]],
        follow=follow,
        pools=pools,
        heights={"scatter": 245, "margins": 245, "image": 238, "traces": 238},
        state={"subset": ()},
        clicks={"scatter": "sample"},
        lassos={"scatter": "subset"},
    )


def scatter_values(
    source: Source, target: int, attack: str
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(scores of the loss attack, scores of this attack, membership) of one target, (N,) each."""
    loss = source.scores("loss")
    scores = source.scores(attack)
    row = row_of(scores, target)
    return loss.value[row], scores.value[row], scores.member[row]


@lru_cache(16)
def scatter_picture(source: Source, target: int, attack: str) -> dict:
    """The scatter of a target's scores, without the sample's mark."""
    x, y, member = scatter_values(source, target, attack)
    figure = samples.score_points(
        x,
        y,
        member,
        source.numbers,
        names=(attacks.in_words("loss"), attacks.in_words(attack)),
    )
    # plotly keeps zoom and lasso while this key stays the same, so while only the sample changes
    key = f"{source.label} {target} {attack}"
    axes = {name: figure["layout"][name] | {"uirevision": key} for name in ("xaxis", "yaxis")}
    return with_layout(figure, **axes, selectionrevision=key, modebar={"uirevision": key})


def with_ring(scatter: dict, x: float, y: float, sample: int) -> dict:
    """The scatter with a ring around the sample; no ring where x or y is not finite."""
    place = {"x": [], "y": []}
    if np.isfinite([x, y]).all():
        place = {"x": [float(x)], "y": [float(y)]}
    ring = RING | place | {"name": f"sample {sample}"}
    return scatter | {"data": [*scatter["data"], ring]}


def image_picture(source: Source, target: int, column: int) -> dict:
    """The sample's image, its label, whether the target is right, and the target's confidence."""
    if source.images is None:
        return samples.empty(NO_IMAGES)
    confidence = expit(source.signals.margin[target, :, column]).mean()
    caption = (
        f"labelled {source.class_of(column)}; target {right_or_wrong(source, target, column)},"
        f" p = {confidence:.3g}"
    )
    return samples.picture(source.images[column], caption)


def lasso_picture(source: Source, target: int, in_lasso: np.ndarray) -> dict:
    """The images of the samples with these indices, under a caption that counts them."""
    if not len(in_lasso):
        return samples.empty("Draw a lasso around points of the scatter to see who they are")
    columns = source.audited[in_lasso]
    numbers = source.numbers[in_lasso]
    member = source.signals.member[target, columns]
    marks = np.where(member, "● ", "◇ ")
    caption = f"{quantity(len(columns), 'sample')}, {member.sum():,} members (●) and"
    caption += f" {(~member).sum():,} non-members (◇)"
    if source.images is None:
        return samples.empty(f"{caption}; {NO_IMAGES}")
    chosen = np.linspace(0, len(columns) - 1, min(len(columns), THUMBNAILS)).astype(int)
    if len(chosen) < len(columns):
        caption += f"; {len(chosen)} of them"
    labels = []
    for i in chosen:
        name = samples.short(source.class_of(columns[i]))
        labels.append(f"{marks[i]}{numbers[i]}<br>{name}")
    return samples.sheet(source.images[columns[chosen]], labels, numbers[chosen], caption)


def margins_picture(
    source: Source,
    evidence: Evidence,
    models: np.ndarray,
    column: int,
    trained: bool,
) -> dict:
    """The sample's margins by its references, the fits, and the target's own margin.

    Parameters:
        source: source of the signals
        evidence: what the references in use say
        models: places of all references in the signals, those in use first
        column: column of the sample
        trained: whether the target was trained on it
    """
    values = source.margins([column])[models, 0]
    member = source.signals.member[models, column]
    target_margin = float(evidence.target_margins[column])
    # ends of all references' margins, so that the axis stays the same while k grows
    low = min(values.min(), target_margin)
    high = max(values.max(), target_margin)
    width = high - low
    span = (low - 0.25 * width - 0.1, high + 0.25 * width + 0.1)
    used = slice(len(evidence.references.margin))
    inside = member[used].sum()
    outside = (~member[used]).sum()
    return samples.two_worlds(
        values[used],
        member[used],
        f"{inside} IN and {outside} OUT references; the target at {target_margin:.2f}",
        numbers=models[used],
        target=target_margin,
        trained=trained,
        curves=curves_of(evidence, column, span),
        span=span,
    )


def curves_of(evidence: Evidence, column: int, span: tuple[float, float]) -> list[samples.Curve]:
    """The densities that were fitted to the margins of one sample, drawn over this span."""
    gaussian = ("Gaussian", "dash", evidence.gaussian)
    student = ("Student-t LiRA", "dot", evidence.student)
    curves = []
    for name, dash, fits in (gaussian, student):
        if fits is None:
            continue
        fit = fits.of(column)
        if not np.isfinite(fit.centre).any():
            continue
        # more points around the centres, so that a narrow peak is not missed; a side without
        # references has none
        near = np.nan_to_num(fit.centre + fit.scale * np.linspace(-4, 4, 61), nan=span[0]).ravel()
        x = np.sort(np.concatenate([np.linspace(*span, 121), np.clip(near, *span)]))
        inside, outside = np.exp(fit.log_density(x))
        curves.append(samples.Curve(name, dash, x, inside, outside))
    return curves


def result_words(about: SampleEvidence, k: int) -> str:
    """The distance of a sample's two worlds, and which of them the target resembles, in words."""
    if about.n_in == 0 or about.n_out == 0:
        side = "IN" if about.n_in == 0 else "OUT"
        return f"none of these references is {side}, so there is no ratio: take more"
    used = f"{about.n_in} IN and {about.n_out} OUT references"
    if about.n_in == about.n_out == k:
        used = f"k = {quantity(k, 'reference')} a side"
    subject = "the log likelihood ratio is"
    if not about.is_gaussian:
        subject = "only Student-t LiRA gives a ratio,"
    gap = f"IN and OUT models differ by {in_digits(about.gap)} nats"
    ratio = f"from {used} {subject} {in_digits(about.log_ratio)}"
    if np.isnan(about.ratio_low):
        return f"{gap}; {ratio}, no interval: one reference on a side"
    gap += f" [{in_digits(about.gap_low)}, {in_digits(about.gap_high)}]"
    ratio += f" [{in_digits(about.ratio_low)}, {in_digits(about.ratio_high)}]"
    is_decided = about.ratio_low > 0 or about.ratio_high < 0
    if not is_decided:
        looks = "undecided"
    elif about.log_ratio > 0:
        looks = "looks like a member"
    else:
        looks = "looks like a non-member"
    return f"{gap}; {ratio}: {looks}"


def number_cells(about: SampleEvidence) -> dict[str, str]:
    """The cells of the table with the numbers of one sample, by column."""
    gaussian_ratio = about.log_ratio if about.is_gaussian else np.nan
    return {
        "target's margin": f"{about.target_margin:.3f}",
        "confidence": f"{expit(about.target_margin):.2%}",
        "n IN": str(about.n_in),
        "n OUT": str(about.n_out),
        "m IN - m OUT": with_interval(about.gap, about.gap_low, about.gap_high, ".3g"),
        "log LR": with_interval(gaussian_ratio, about.ratio_low, about.ratio_high, ".3g"),
        "log LR (Student-t LiRA)": number_text(about.student_log_ratio),
    }


def non_members_as_high(evidence: Evidence, source: Source, member: np.ndarray, index: int) -> str:
    """How many non-members have a log likelihood ratio as high as this sample's, with the interval
    of their share.
    """
    ratio = evidence.log_ratios[source.audited]
    non_members = ratio[~member & np.isfinite(ratio)]
    if not len(non_members) or np.isnan(ratio[index]):
        return NOT_MEASURABLE
    as_high = int((non_members >= ratio[index]).sum())
    low, high = metrics.clopper_pearson(as_high, len(non_members))
    return f"{as_high:,} of {len(non_members):,} [{low:.2%}, {high:.2%}]"


def right_or_wrong(source: Source, target: int, column: int) -> str:
    """Whether the target classifies a sample correctly, in words; a share if only some queries are
    right.
    """
    correct = source.signals.correct[[target]][:, :, [column]]
    share = over_queries(correct, source.signals.query_kind).item()
    if share == 1:
        return "right"
    if share == 0:
        return "wrong"
    return f"right in {share:.0%} of queries"


def margins_of_models(source: Source, sample: int) -> pd.DataFrame:
    """Every model's margin and membership of a sample, for CSV."""
    column = source.audited[source.audited_index(sample)]
    return pd.DataFrame(
        {
            "sample": sample,
            "label": source.class_of(column),
            "model": source.rows,
            "margin": source.margins([column])[:, 0],
            "member": source.signals.member[:, column],
        }
    )


def note(source: Source, evidence: Evidence, k: int, attack: str) -> str:
    """The remarks below the table: which references, queries and intervals the numbers rest on."""
    models, queries, _ = evidence.references.margin.shape
    notes = [
        source.lacks,
        "95 % intervals given these references",
        "the target's complementary model is no reference",
    ]
    models_with_sample = evidence.references.member[:, source.audited].sum(0)
    if (models_with_sample != k).any():
        notes.append(
            f"no complementary pairs: k = {k} stands for {models} models, shared out by chance"
        )
    if queries > 1 and evidence.references.query_kind == "steps":
        notes.append("margins after the last time step")
    elif queries > 1:
        notes.append(f"margins are means of {queries} queries")
    notes += [
        "losses: references that trained on it, dashed and shaded all members; non-members have no"
        " training loss",
        f"score: {attacks.in_words(attack)} with all references; what one ratio proves depends on"
        " how often it errs: see Scores and ROC",
    ]
    return remarks([*notes, *evidence.flags])
