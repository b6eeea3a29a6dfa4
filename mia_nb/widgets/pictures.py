"""Histograms and ROCs of scores side by side; histograms by rank among the non-members."""

from mia_nb import attacks, plots
from mia_nb.plots.style import BELOW, look
from mia_nb.types import Scores
from mia_nb.widgets.figure import plain, with_layout, with_title

BINS = 60  # of a histogram of half the width
INSIDE = {"x": 0, "y": 1, "yanchor": "top"}  # a legend at the top left, where bars are low


def side_by_side(scores: dict[str, Scores], attack: str) -> dict[str, dict]:
    """Two figures of {name: Scores}: "histogram", members over non-members, and "roc"."""
    name = attacks.in_words(attack)
    roc = plots.roc_pair(scores).update_layout(height=420, title_text=f"ROC of {name}")
    return {
        "histogram": histograms(scores, f"Scores of {name}, by their rank among non-members"),
        "roc": plain(roc),
    }


def histograms(scores: dict[str, Scores], title: str) -> dict:
    """Histograms of the members of each, by their rank among its own non-members. The histogram of
    the non-members' ranks is the same everywhere and is drawn once.
    """
    figures = [ranked(scores_of_attack) for scores_of_attack in scores.values()]
    first = figures[0]
    non_members, _ = first["data"]
    traces = [non_members | {"name": "non-members"}]
    for number, (name, figure) in enumerate(zip(scores, figures, strict=True)):
        _, members = figure["data"]
        members = members | {"name": f"members, {name}"}
        if number > 0:
            colour, dash, _ = look(number)  # as in the ROC beside it
            line = {"shape": "hv", "color": colour, "dash": dash, "width": 2}
            members |= {"line": line, "fill": "none"}
        traces.append(members)
    return with_title(with_layout(first | {"data": traces}, legend=BELOW, height=330), title)


def ranked(scores: Scores, *, bins: int = BINS) -> dict:
    """The histogram of scores by their rank among non-members, on an axis that makes the ranks
    normal: a few exposed members are visible however long the tail of the scores is.
    """
    figure = plain(plots.histogram(scores, bins=bins, scale="rank"))
    return with_layout(figure, xaxis=figure["layout"]["xaxis"] | {"tickfont": {"size": 10}})
