"""Executed notebooks -> one HTML page that needs no network: a verdict, then the question of each
notebook, its result in words and one picture; everything else is folded.

nbconvert turns cells into HTML by `templates/report/index.html.j2`; `page.html.j2` puts the page
together. Cells tagged `verdict`, `headline` or `picture` are shown outside of the folds.
"""

from mia_nb.report.pages import audit_page, page
from mia_nb.report.parts import errors_of_figures, is_figure

__all__ = ["audit_page", "errors_of_figures", "is_figure", "page"]
