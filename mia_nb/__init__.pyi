"""What editors and type checkers read; at run time names are imported when they are used."""

# ruff: noqa: F401, I001
from mia_nb import (
    accounting as accounting,
    attacks as attacks,
    auditing as auditing,
    data as data,
    defenses as defenses,
    examples as examples,
    metrics as metrics,
    models as models,
    plots as plots,
    querying as querying,
    report as report,
    store as store,
    studies as studies,
    training as training,
    types as types,
    widgets as widgets,
    workshop as workshop,
)
from mia_nb.attacks import score as score
from mia_nb.attacks import suite as suite
from mia_nb.auditing import audit_model as audit
from mia_nb.auditing import ladder as ladder
from mia_nb.auditing import read_outputs as read_outputs
from mia_nb.data import load as load
from mia_nb.examples import load_example as load_example
from mia_nb.metrics import frontier as frontier
from mia_nb.metrics import readable as readable
from mia_nb.metrics import self_test as self_test
from mia_nb.metrics import summary as summary
from mia_nb.metrics import verdict as verdict
from mia_nb.plots import histogram as histogram
from mia_nb.plots import roc_pair as roc
from mia_nb.querying import query as query
from mia_nb.training import convert_pool as convert
from mia_nb.training import hybrid_pools as hybrid
from mia_nb.training import load_pool as load_pool
from mia_nb.training import train_pool as train
from mia_nb.types import Images as Images
from mia_nb.types import Query as Query
from mia_nb.types import Recipe as Recipe
from mia_nb.types import Scores as Scores
from mia_nb.types import Signals as Signals
from mia_nb.widgets import explore as explore

__version__: str
