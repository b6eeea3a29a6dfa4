"""The parameters of notebooks: their declaration in a cell, the records that group them, and their
values, which are checked before anything runs.

A notebook has few parameters of its own. Parameters that many notebooks share are fields of
records: `recipe` (how a pool is trained), `source` (the images), `query`, `analysis`, `run`.
A value is given for a parameter, for entries of a record, or for a field of a record by its bare
name: `epochs=5` means `recipe={epochs: 5}`, and other entries do not change.
"""

from mia_nb.parameters.cells import Parameter, parse, read_parameters
from mia_nb.parameters.records import RECORDS, Analysis, Run, Source, Study, record_of
from mia_nb.parameters.values import (
    changed,
    complete,
    described,
    fit,
    no_parameter,
    of_namespace,
    read_text,
    refuse_values,
)

__all__ = [
    "RECORDS",
    "Analysis",
    "Parameter",
    "Run",
    "Source",
    "Study",
    "changed",
    "complete",
    "described",
    "fit",
    "no_parameter",
    "of_namespace",
    "parse",
    "read_parameters",
    "read_text",
    "record_of",
    "refuse_values",
]
