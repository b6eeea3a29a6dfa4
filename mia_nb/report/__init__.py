"""Executed notebooks -> one HTML page that needs no network: a verdict, then of every notebook its
question, its result in words and one picture; everything else is folded.

nbconvert turns cells into HTML by `templates/report/index.html.j2`; `page.html.j2` puts the page
together. Tags of cells say what stands outside the folds: `verdict`, `headline`, `picture`.
"""

from mia_nb.report.pages import audit_page, page
from mia_nb.report.parts import is_figure, lost_figures

__all__ = ["audit_page", "is_figure", "lost_figures", "page"]
