"""What noise buys: DP-SGD accountants, the formulas of the neural SDE study, a release bound,
trade-off curves.

Neighbouring data sets differ by adding or removing one record. delta goes with every epsilon.
Logarithms are natural, Phi is the normal cdf. Kinds of numbers live here that are never mixed:
`epsilon` speaks about DP-SGD (clipped per-sample gradients, Gaussian noise, Poisson batches) and is
a nominal number for anything else; `theorem_epsilon` and `corollary_epsilon` are a paper's
formulas; `release_mu` bounds what one output tells about the queried input, and says nothing about
training; `response_epsilon` is about one label that is randomised; `stored_epsilon` is about one
record of which a noisy state and a randomised label were drawn once and stored.
"""

from mia_nb.accounting.accountants import gdp_mu
from mia_nb.accounting.dp_sgd import aimed, epsilon, noise_multiplier, over_epochs
from mia_nb.accounting.gaussian import gaussian_delta, gaussian_epsilon, gaussian_mu, tradeoff
from mia_nb.accounting.neural_sde import (
    corollary_epsilon,
    noise_sd,
    nsde_sigma,
    release_mu,
    theorem_epsilon,
)
from mia_nb.accounting.stored import RELATIONS, response_epsilon, stored_epsilon, stored_mu

__all__ = [
    "RELATIONS",
    "aimed",
    "corollary_epsilon",
    "epsilon",
    "gaussian_delta",
    "gaussian_epsilon",
    "gaussian_mu",
    "gdp_mu",
    "noise_multiplier",
    "noise_sd",
    "nsde_sigma",
    "over_epochs",
    "release_mu",
    "response_epsilon",
    "stored_epsilon",
    "stored_mu",
    "theorem_epsilon",
    "tradeoff",
]
