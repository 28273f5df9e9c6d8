"""Inducing-point Gaussian processes on features, in plain torch."""

from due.gp.cholesky import JitterWarning
from due.gp.collapsed import collapsed_bound, held_out_noise, set_optimal_q
from due.gp.difference import joint_difference, mean_difference
from due.gp.exact import log_marginal_likelihood, posterior
from due.gp.inducing import InducingGP
from due.gp.initialise import features, initialise, warm_start
from due.gp.kernels import Kernel
from due.gp.likelihoods import Gaussian, Likelihood, Normal, Softmax
from due.gp.reference import Reference

__all__ = [
    "Gaussian",
    "InducingGP",
    "JitterWarning",
    "Kernel",
    "Likelihood",
    "Normal",
    "Reference",
    "Softmax",
    "collapsed_bound",
    "features",
    "held_out_noise",
    "initialise",
    "joint_difference",
    "log_marginal_likelihood",
    "mean_difference",
    "posterior",
    "set_optimal_q",
    "warm_start",
]
