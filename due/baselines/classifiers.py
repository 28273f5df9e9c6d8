"""Classifiers that DUE is compared with, on the same network and with the same training."""

from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import nn

from due.estimators.classifier import Classifier, DUEClassifier
from due.estimators.network import estimator
from due.methods.ddu import DDU
from due.methods.duq import DUQ
from due.methods.sngp import CURVATURES, RandomFeatureGP, SNGPSoftmax
from due.methods.softmax import SoftmaxNetwork
from due.methods.svdkl import GridGP, SVDKLSoftmax, check_grid
from due.networks import FeedForward
from due.rows.checks import (
    argument,
    check_flag,
    check_not_negative,
    check_positive,
    check_rows,
    check_share,
    check_whole,
    one_of,
    or_none,
)
from due.rows.scale import Floats
from due.training import Recipe


@estimator
class SoftmaxClassifier(Classifier):
    """The usual deep classifier, with the arguments and the training of `DUEClassifier`.

    Its learning rate is 2e-3, and its network is free by default. All arguments are those of
    `Classifier`, `NetworkEstimator` and `Trained`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SoftmaxClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """

    c: float | None = argument(None, or_none(check_positive))

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> SoftmaxNetwork:
        return SoftmaxNetwork(f, J, T)


@estimator
class DUQClassifier(Classifier):
    """DUQ (van Amersfoort et al., 2020) with the arguments and training of `DUEClassifier`.

    Each class has a kernel K_c(x) = exp(−d_c(x)), d_c = mean((W_c f(x) − e_c)²) / 2σ², around a
    centroid e_c, a moving average over its rows. They are trained by binary cross-entropy, one
    class against the rest, with a two-sided penalty on the gradient of Σ_c K_c in x in place of
    the bound c. `uncertainty` is 1 − max_c K_c, as in the paper: 1 far from all centroids.

    K is no distribution over the classes. `predict_proba` is K normalised, K_c / Σ_c K_c: it has
    the paper's prediction as its largest, but a row far from all may have one close to 1.

    Parameters
    ----------
    centroid_size
        Length of the centroids; None makes them as long as the features.
    sigma
        Length scale σ of the kernels; the authors take 0.1 for images, 0.3 for two moons.
    gamma
        Share of the old centroids that each training step keeps; the authors take 0.999 for
        images, where steps are many.
    penalty
        Weight of the gradient penalty; 0 leaves it out. It wants the features of a row to depend
        on that row only: no batch norm.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = DUQClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> near, far = model.uncertainty([[0.0, 1.0], [9.0, 9.0]])
    >>> bool(far > near)
    True
    """

    c: float | None = argument(None, or_none(check_positive))
    centroid_size: int | None = argument(None, or_none(check_whole))
    sigma: float = argument(0.3, check_positive)
    gamma: float = argument(0.99, check_share)  # 0: a batch without a class leaves no centroid
    penalty: float = argument(0.5, check_not_negative)

    def distance(self, X: ArrayLike) -> Floats:
        """min_c d_c(x) = −log max_c K_c(x), shape (N,).

        It ranks rows as `uncertainty` does, and goes on where that is 1 to the last digit.
        """
        rows, predictor = check_rows(self, X), self.predictor_
        nearest: Floats = self._ask(
            lambda x: predictor.model.nearest(predictor.model.f(predictor.scale(x))), rows
        )
        return nearest

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> DUQ:
        return DUQ(f, J, T, self.centroid_size, self.sigma, self.gamma, self.penalty)


@estimator
class SNGPClassifier(Classifier):
    """SNGP (Liu et al., 2020) with the arguments and the training of `DUEClassifier`.

    The logits are f = β φ(h) + b on random Fourier features φ of h, trained by cross-entropy and
    the prior of β, at rates of 2e-3 for the network and 1e-2 for β. A last pass over the training
    rows, in eval mode, then gives their covariance by Laplace,
    Var[f] = φᵀ (ridge · I + Σ_i a_i φ_i φ_iᵀ)⁻¹ φ.
    Probabilities are mean-field, softmax(mean / √(1 + π/8 · Var[f])), and `uncertainty` is their
    entropy, as in the paper.

    Parameters
    ----------
    n_random_features
        Number of random features.
    ridge
        Prior precision of β.
    curvature
        a_i, with p = softmax(f): "one" is 1, as the authors' code has it; "per_class" is
        p_c (1 − p_c), the paper's formula, with a covariance per class; "largest" is
        max_c p_c (1 − max_c p_c), one covariance for all classes. The last two leave the variance
        near the prior's where the fit is certain.
    layer_norm
        Put h through a LayerNorm first, as the authors do. Rows in one direction then look alike
        however far they are.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = SNGPClassifier(n_random_features=128, epochs=60, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    >>> near, far = model.uncertainty([[0.0, 1.0], [9.0, 9.0]])
    >>> bool(far > near)
    True
    """

    n_random_features: int = argument(1024, check_whole)
    ridge: float = argument(1.0, check_positive)
    curvature: str = argument("one", one_of(CURVATURES))
    layer_norm: bool = argument(False, check_flag)
    _recipe = Recipe(head_lr=1e-2).over(Classifier._recipe)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> SNGPSoftmax:
        gp = random_features(self, J, T, K=T if self.curvature == "per_class" else 1)
        return SNGPSoftmax(f, gp, n, self.curvature)


@estimator
class DDUClassifier(Classifier):
    """DDU (Mukhoti et al., 2023) with the arguments and the training of `DUEClassifier`.

    A softmax network on distance-keeping features z = f(x). A last pass over the training rows
    fits a Gaussian with full covariance to the features of each class. `uncertainty` is minus
    the log-density of the features, −log Σ_c π_c N(z; μ_c, Σ_c), high for rows far from all
    classes; it is no probability and may be negative. `entropy` of the softmax is high where
    classes overlap. All arguments are those of `Classifier`, `NetworkEstimator` and `Trained`.
    `model_.density.jitter` was added to each class's covariance, which with fewer rows than
    features is singular.

    Examples
    --------
    >>> from sklearn.datasets import make_blobs
    >>> X, y = make_blobs(200, centers=3, random_state=0)
    >>> model = DDUClassifier(epochs=30, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.85)
    True
    >>> near, far = model.uncertainty([[1.0, 4.0], [50.0, 50.0]])
    >>> bool(far > near)
    True
    """

    def entropy(self, X: ArrayLike) -> Floats:
        """Entropy −Σ_c p_c log p_c of the softmax, shape (N,): what more data would not remove."""
        rows = check_rows(self, X)
        return self._ask(self.predictor_.entropy, rows)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> DDU:
        return DDU(f, J, T)


@estimator
class SVDKLClassifier(Classifier):
    """SV-DKL (Wilson et al., 2016) with the arguments and the training of `DUEClassifier`.

    Each feature h_j has a GP g_j of its own, interpolated from a grid, and the logits are A g(h).
    The ELBO is trained, at rates of 2e-3 for the network and 2e-2 for the GPs, and `uncertainty`
    is the entropy of E[softmax(A g)], as in the DUE paper. The features are scaled to the grid by
    the range of the training rows, and clipped to it. c = None leaves the network free, as Wilson
    et al. do. Needs `pip install 'due[rivals]'`.

    Parameters
    ----------
    n_grid
        Points of each grid.

    Examples
    --------
    >>> from due.networks import FCResNet
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> def small(shape):
    ...     return FCResNet(shape[0], 8, 2)
    >>> model = SVDKLClassifier(small, n_grid=16, epochs=40, random_state=0)  # doctest: +SKIP
    >>> bool(model.fit(X, y).score(X, y) > 0.8)  # doctest: +SKIP
    True
    """

    n_grid: int = argument(64, check_grid)
    _recipe = Recipe(head_lr=2e-2).over(Classifier._recipe)

    def _method(self, f: nn.Module, J: int, T: int, n: int) -> SVDKLSoftmax:
        return SVDKLSoftmax(f, GridGP(J, self.n_grid), T, n)


def GPDNN(**changes: Any) -> DUEClassifier:
    """GPDNN (Bradshaw et al., 2017): DUE on a network that nothing keeps from collapsing.

    It differs from `DUEClassifier` by its extractor, `feed_forward`, and by c = None. Its
    `uncertainty` is the entropy of the predicted probabilities.

    Parameters
    ----------
    changes
        Arguments of `DUEClassifier` by name.

    Returns
    -------
    A `DUEClassifier`, not yet fitted. What it saves is loaded with the same extractor:
    `DUEClassifier.load(path, feed_forward)`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = GPDNN(epochs=20, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """
    return DUEClassifier(**{"extractor": feed_forward, "c": None, **changes})


def feed_forward(shape: torch.Size) -> nn.Module:
    """The layers of the default network without its skip connections."""
    if len(shape) != 1:
        raise ValueError(
            f"rows have shape {tuple(shape)}; this network takes vectors: flatten them or give "
            "an extractor, a function from the shape of a row to an nn.Module"
        )
    return FeedForward(shape[0], min(max(128, shape[0]), 1024), 4)


def random_features(estimator: Any, J: int, T: int, K: int = 1) -> RandomFeatureGP:
    """The head of an SNGP estimator, drawn from the global generator's next number."""
    return RandomFeatureGP(
        J,
        T,
        estimator.n_random_features,
        ridge=float(estimator.ridge),
        K=K,
        layer_norm=estimator.layer_norm,
        seed=int(torch.randint(2**31 - 1, ())),
    )
