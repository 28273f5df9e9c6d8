"""Inducing-point Gaussian processes on features, in plain torch."""

from due.gp.cholesky import JitterWarning
from due.gp.collapsed import collapsed_bound, held_out_noise, set_optimal_q
from due.gp.exact import log_marginal_likelihood, posterior
from due.gp.frozen import FrozenClasses, FrozenEffects, FrozenGP, FrozenValues
from due.gp.inducing import InducingGP
from due.gp.initialise import evaluate, features, initialise, warm_start
from due.gp.kernels import Kernel
from due.gp.likelihoods import Gaussian, Likelihood, Normal, Softmax, StudentT
from due.gp.reference import Reference

__all__ = [
    "FrozenClasses",
    "FrozenEffects",
    "FrozenGP",
    "FrozenValues",
    "Gaussian",
    "InducingGP",
    "JitterWarning",
    "Kernel",
    "Likelihood",
    "Normal",
    "Reference",
    "Softmax",
    "StudentT",
    "collapsed_bound",
    "evaluate",
    "features",
    "held_out_noise",
    "initialise",
    "log_marginal_likelihood",
    "posterior",
    "set_optimal_q",
    "warm_start",
]
