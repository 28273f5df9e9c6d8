"""Algorithm 1, step 2: Z = k-means centroids of p features, l = their mean pairwise distance."""

import warnings

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from due.gp.collapsed import set_optimal_q
from due.gp.inducing import InducingGP
from due.gp.kernels import Kernel, squared_distance
from due.gp.shapes import Features
from due.lipschitz import SilentNetworkWarning, recalibrate_batch_norm

INITIAL_POINTS = 1000  # p of Algorithm 1
SILENT = 1e-3  # features so small are lost in the first step


def inducing(wanted: int, n: int) -> int:
    """M: not more than the rows that inducing points start from."""
    return min(wanted, INITIAL_POINTS, n)


@torch.no_grad()
def features(
    f: nn.Module, X: Tensor, p: int = 1000, seed: int = 0
) -> tuple[Float[Tensor, "p J"], Int[Tensor, " p"]]:
    """f(X) of p random rows in eval mode (all rows if fewer), and which rows they are."""
    rows = torch.randperm(len(X), generator=torch.Generator().manual_seed(seed))[:p]
    return evaluate(f, X[rows]), rows


@torch.no_grad()
def evaluate(f: nn.Module, X: Tensor) -> Features:
    """f(X) in eval mode, in batches, on the device of f, which may work in place on its input."""
    training, device = f.training, next((p.device for p in f.parameters()), X.device)
    f.eval()
    h = torch.cat([f(part.to(device, copy=True)) for part in X.split(256)])
    f.train(training)
    return h


def first_features(f: nn.Module, X: Tensor) -> Features:
    """f(X) of a network that may not have been trained: its batch norm first learns from X."""
    norms = [m for m in f.modules() if isinstance(m, _BatchNorm)]
    if len(X) > 1 and any(norm.num_batches_tracked == 0 for norm in norms):
        recalibrate_batch_norm(f, X.clone().tensor_split(-(-len(X) // 128)))
    h = evaluate(f, X)
    if norms and len(X) > 1 and (spread := float(h.float().std(0).mean())) < SILENT:
        warnings.warn(
            f"the features of {len(X)} rows hardly differ: their standard deviation is "
            f"{spread:.1g}. The bounds make the network silent: use a larger c, or "
            "constrain(..., batch_norm='paired')",
            SilentNetworkWarning,
            stacklevel=2,
        )
    return h


def initialise(
    h: Float[Tensor, "p J"], M: int, seed: int = 0
) -> tuple[Float[Tensor, "M J"], float]:
    """Inducing inputs Z and length scale l from features h.

    With fewer distinct features than M the centroids repeat; a spread of zero gives l = 1.
    """
    if not torch.isfinite(h).all():
        raise ValueError("features hold NaN or infinite values; check the inputs and the network")
    points = h.detach().double().cpu().numpy()
    if len(points) <= M:
        centres = points[np.arange(M) % len(points)]
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct points than M
            centres = KMeans(M, n_init=1, random_state=seed).fit(points).cluster_centers_
    spread = torch.pdist(torch.from_numpy(points)).mean().item() if len(points) > 1 else 0.0
    return torch.from_numpy(centres).to(h.device), spread if spread > 0 else 1.0


def nearest_rows(h: Float[Tensor, "p J"], Z: Float[Tensor, "M J"]) -> Int[Tensor, " M"]:
    """For each centre a row of its own, the sum of the squared distances being least."""
    if len(h) < len(Z):
        return torch.arange(len(Z)) % len(h)
    d2 = squared_distance(Z, h).cpu().numpy()
    return torch.from_numpy(linear_sum_assignment(d2)[1])


@torch.no_grad()
def spread_rows(h: Float[Tensor, "p J"], kernel: Kernel, M: int) -> Int[Tensor, " M"]:
    """Rows by greedy conditional variance (Burt et al. 2020): each is the one least known so far.

    The pivots of a Cholesky factorisation of κ(h, h), the mean kernel of the outputs.
    """
    K = kernel.correlation(squared_distance(h, h)).mean(0)  # (p, p)
    left, rows = K.diagonal().clone(), torch.arange(M) % len(h)
    A = K.new_zeros(min(M, len(h)), len(h))
    for m in range(len(A)):
        rows[m] = best = int(left.argmax())
        A[m] = (K[best] - A[:m, best] @ A[:m]) / left[best].clamp_min(1e-12).sqrt()
        left = (left - A[m].square()).clamp_min_(0)
        left[rows[: m + 1]] = -1.0  # no row twice
    return rows


def warm_start(
    gp: InducingGP, h: Float[Tensor, "p J"], y: Int[Tensor, " p"], scale: float = 6.0
) -> None:
    """Set q(V) to the posterior of GP regression on `scale` times the centred one-hot labels.

    With m = 0 no gradient reaches the features; from here the first step already knows the classes.
    """
    onehot = torch.nn.functional.one_hot(y, gp.T).double()
    target = scale * (onehot - 1 / gp.T)
    set_optimal_q(gp, h, target, torch.ones(1, dtype=torch.float64, device=h.device))
