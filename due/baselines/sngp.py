"""SNGP as estimators: distance-keeping features, and a GP of random features by Laplace."""

from abc import abstractmethod
from typing import Any

import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from due.baselines.head_estimator import HeadEstimator
from due.baselines.sngp_model import CURVATURES, RandomFeatureGP, SNGPGaussian, SNGPSoftmax
from due.estimators.checks import check_positive, check_whole
from due.estimators.rows import Floats
from due.estimators.torch_classifier import EntropyClassifier
from due.estimators.torch_estimator import Extractor
from due.estimators.torch_regressor import TorchRegressor
from due.estimators.training import Data, Objective

INITIAL_POINTS = 1000  # whose features set the length scale
LR, GP_LR = 2e-3, 1e-2


class SNGPEstimator(HeadEstimator):
    """Abstract: trained without covariance, which one clean pass over the rows then sets."""

    n_random_features: int
    ridge: float
    layer_norm: bool
    gp_lr: float | None

    @property
    @abstractmethod
    def _K(self) -> int:
        """Number of covariances: 1 for all outputs, or one for each."""

    @abstractmethod
    def _on(self, f: nn.Module, gp: RandomFeatureGP) -> nn.Module:
        """The model of a network and its random features."""

    @abstractmethod
    def _check_likelihood(self) -> None:
        """Raise if a parameter of the likelihood makes no sense."""

    def _check_own_parameters(self) -> None:
        check_whole("n_random_features", self.n_random_features)
        check_positive("ridge", self.ridge)
        if self.gp_lr is not None:
            check_positive("gp_lr", self.gp_lr)
        self._check_likelihood()

    def _head(self, f: nn.Module, J: int) -> nn.Module:
        seed = int(torch.randint(2**31 - 1, ()))
        gp = RandomFeatureGP(
            J,
            self._T,
            self.n_random_features,
            ridge=float(self.ridge),
            K=self._K,
            layer_norm=self.layer_norm,
            seed=seed,
        )
        return self._on(f, gp)

    @torch.no_grad()
    def _initialise(self, model: Any, X: Tensor) -> None:
        rows = torch.randperm(len(X))[:INITIAL_POINTS]
        if len(rows) > 1:
            model.gp.set_lengthscale(model.f(X[rows]))

    def _objective(self, data: Data) -> Objective:
        self.model_.n_data = len(data[0])  # rows: their weights do the rest
        return self._in_batches(len(data[0]), lr=LR, head_lr=self.gp_lr or GP_LR)

    def _complete(self, known: Data, held_out: Data, seed: int) -> None:
        x, _, *weights = known
        self.model_.set_covariance(x, weights[0] if weights else None)


class SNGPClassifier(EntropyClassifier, SNGPEstimator):
    """SNGP (Liu et al., 2020) with the arguments and the training of `DUEClassifier`.

    The logits are f = β φ(h) + b on random Fourier features φ of h, trained by cross-entropy and
    the prior of β. A last pass over the training rows, in eval mode, then gives their covariance
    by Laplace, Var[f] = φᵀ (ridge · I + Σ_i a_i φ_i φ_iᵀ)⁻¹ φ.
    Probabilities are mean-field, softmax(mean / √(1 + π/8 · Var[f])), and `uncertainty` is their
    entropy, as in the paper.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
    n_random_features
        Number of random features.
    ridge
        Prior precision of β.
    curvature
        a_i, with p = softmax(f): "one" is 1, as the authors' code has it; "per_class" is
        p_c (1 − p_c), the paper's formula, with a covariance a class; "largest" is
        max_c p_c (1 − max_c p_c), one covariance for all classes. The last two leave the variance
        near the prior's where the fit is sure.
    layer_norm
        Put h through a LayerNorm first, as the authors do. Rows in one direction then look alike
        however far they are.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr, gp_lr
        Learning rates of Adam for the network, and for β; None is 2e-3 and 1e-2. Without validation
        they fall to 0 along a cosine.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    patience
        Epochs without improvement on those rows after which training stops.
    warm_start
        Let `fit` go on from the last fit: its scaling and network stay.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    classes_
        The labels, sorted.
    history_
        Loss and validation of each epoch.
    model_
        The trained `SNGPSoftmax`.

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

    model_: SNGPSoftmax
    frozen_: SNGPSoftmax

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_random_features: int = 1024,
        ridge: float = 1.0,
        curvature: str = "one",
        layer_norm: bool = False,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.0,
        patience: int = 20,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_random_features = n_random_features
        self.ridge = ridge
        self.curvature = curvature
        self.layer_norm = layer_norm
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    @property
    def _K(self) -> int:
        return self._T if self.curvature == "per_class" else 1

    def _check_likelihood(self) -> None:
        if self.curvature not in CURVATURES:
            raise ValueError(f"curvature={self.curvature!r} is not one of {', '.join(CURVATURES)}")

    def _on(self, f: nn.Module, gp: RandomFeatureGP) -> SNGPSoftmax:
        return SNGPSoftmax(f, gp, 1, self.curvature)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(self.model_.gp.mean(self.model_.f(x)), y, reduction="none")

    def _probabilities(self, x: Tensor) -> Tensor:
        return self.frozen_.predict(x)


class SNGPRegressor(TorchRegressor, SNGPEstimator):
    """SNGP (Liu et al., 2020) for regression, with the arguments and training of `DUERegressor`.

    The mean is f = β φ(h) + b on random Fourier features φ of h, trained by the likelihood of
    y ~ N(f, σ²) and the prior of β. A last pass over the training rows, in eval mode, then gives
    Var[f] = φᵀ (ridge · I + Σ_i φ_i φ_iᵀ / σ²)⁻¹ φ, in units of Var[y]. That is `uncertainty`;
    the deviation of `predict` adds σ². As rows are added Var[f] goes to 0 everywhere.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        None builds an FC-ResNet of 4 layers as wide as a row, but 128 to 1,024.
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
    n_random_features
        Number of random features.
    ridge
        Prior precision of β.
    sigma2
        Noise variance in units of Var[y]; None learns it. With 1 the loss is half the squared
        error and the precision is ridge · I + Σφφᵀ, as in Figure 1 of the DUE paper.
    layer_norm
        Put h through a LayerNorm first, as the authors do. Rows in one direction then look alike
        however far they are.
    epochs, batch_size
        None makes about 4,000 steps, in 5 to 80 epochs of batches of 64 (more for large data).
    lr, gp_lr
        Learning rates of Adam for the network, and for β; None is 2e-3 and 1e-2. Without validation
        they fall to 0 along a cosine.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch; 0 trains on all of them.
    patience
        Epochs without improvement on those rows after which training stops.
    warm_start
        Let `fit` go on from the last fit: its scaling and network stay.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch.
    model_
        The trained `SNGPGaussian`.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 200)[:, None]
    >>> model = SNGPRegressor(n_random_features=128, epochs=60, random_state=0)
    >>> mean, std = model.fit(X, np.sin(X[:, 0])).predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.2), bool(std[1] > 2 * std[0])
    (True, True)
    """

    model_: SNGPGaussian
    frozen_: SNGPGaussian

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_random_features: int = 1024,
        ridge: float = 1.0,
        sigma2: float | None = None,
        layer_norm: bool = False,
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.2,
        patience: int = 30,
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_random_features = n_random_features
        self.ridge = ridge
        self.sigma2 = sigma2
        self.layer_norm = layer_norm
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def predict(self, X: ArrayLike, return_std: bool = False) -> Any:
        """Mean of y, with the standard deviation √(Var[f] + σ²) of a new observation."""
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance Var[f] of the latent function, without noise, of the shape of `predict(X)`."""
        return self._latent_variance(X)

    @property
    def _K(self) -> int:
        return 1

    def _check_likelihood(self) -> None:
        if self.sigma2 is not None:
            check_positive("sigma2", self.sigma2)

    def _on(self, f: nn.Module, gp: RandomFeatureGP) -> SNGPGaussian:
        if self.sigma2 is None:
            return SNGPGaussian(f, gp, 1, learn_sigma2=True)
        return SNGPGaussian(f, gp, 1, float(self.sigma2))

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        mean = self.model_.gp.mean(self.model_.f(x))
        return -self.model_.likelihood.expected_log_prob(mean, torch.zeros_like(mean), y)

    def _predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.frozen_.predict(x)

    def _latent_variance(self, X: ArrayLike) -> Floats:
        var = self._map(lambda x: self.frozen_.latent(x).var, X)
        return self._shape(var * self.y_scale_.std**2)
