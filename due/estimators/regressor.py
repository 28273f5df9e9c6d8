"""DUE as a scikit-learn regressor."""

from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from sklearn.utils import check_random_state
from torch import Tensor, nn

from due.estimators.base import DUEEstimator
from due.estimators.rows import Floats
from due.estimators.torch_estimator import Extractor
from due.estimators.torch_regressor import TorchRegressor
from due.estimators.training import Data, Objective
from due.gp import Gaussian, InducingGP, Normal, held_out_noise
from due.model import DUE, CollapsedBound
from due.train import train


class ValueUncertainty(NamedTuple):
    """In the units of y, squared; each of the shape of y, the OOD score (N,)."""

    total: Floats  # variance of a new observation
    aleatoric: Floats  # of the noise
    epistemic: Floats  # of the latent function
    ood_score: Floats  # in [0, 1], 1 far from the data


class DUERegressor(TorchRegressor, DUEEstimator):
    """Deep network with distance-keeping features and a GP on top; uncertainty in one pass.

    What speaks of y (`predict`'s standard deviation and covariance, `predict_interval`,
    `sample_y`) includes the noise; `uncertainty` is the variance of the latent function alone.

    Parameters
    ----------
    extractor
        Function from the shape of a row to an `nn.Module` that gives one feature vector a row.
        It predicts in float64. None builds an FC-ResNet of 4 layers as wide as a row, but 128 to
        1,024.
    c
        Bound on the Lipschitz constant of each layer; below 1 a residual network is bi-Lipschitz,
        at 1 and above only its upper bound remains. None leaves the network free.
    n_inducing
        Number of inducing points (at most the number of distinct rows).
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    bound
        "collapsed" trains on all rows at once with q(U) in closed form, "elbo" on batches as the
        paper does; "auto" takes the first up to `COLLAPSED_ROWS` rows. `history_` says which.
    epochs, batch_size
        None is 300 epochs for the collapsed bound, which always takes all rows at once, and
        about 4,000 steps in 5 to 80 epochs for the ELBO.
    lr, gp_lr
        Learning rates of Adam for the network, and for the GP; None is 4e-3 and 5e-2 for the
        collapsed bound, 2e-3 and 1e-2 for the ELBO.
    weight_decay
        L2 penalty of Adam, on every parameter.
    scale_inputs
        Standardise the inputs; False takes X as it is, for those who have prepared it.
    validation_fraction
        Share of the rows held out to choose the best epoch. 0 trains on all of them, with a
        learning rate that falls to zero.
    patience
        Epochs without improvement after which training stops, if rows are held out.
    finish
        What the collapsed bound does once held-out rows have chosen the features. "noise" takes
        the noise under which those rows are most probable, for features settle before the noise
        does and fit the rows they were trained on too well; then q(U) learns from all rows. "q"
        does only the latter. "gp" takes 60 steps of the noise and of all the GP on all rows, the
        smallest error but intervals that are too narrow on most tables. "nothing" stops there.
    warm_start
        Let `fit` go on from the last fit: its scaling, network, kernel and inducing points stay,
        whatever the parameters say now.
    random_state
        Seed of everything random in `fit`; prediction is deterministic.
    device
        Where to train and predict, such as "cpu" or "cuda".
    verbose
        Show a progress bar on a terminal.

    Attributes
    ----------
    history_
        Loss and validation of each epoch, and the bound that was trained.
    model_
        The `due.DUE` behind it.

    Examples
    --------
    >>> import numpy as np
    >>> X = np.linspace(-3, 3, 100)[:, None]
    >>> model = DUERegressor(epochs=150, random_state=0).fit(X, np.sin(X[:, 0]))
    >>> mean, std = model.predict([[0.0], [30.0]], return_std=True)
    >>> bool(abs(mean[0]) < 0.2), bool(std[1] > 2 * std[0])
    (True, True)
    """

    def __init__(
        self,
        extractor: Extractor | None = None,
        *,
        c: float | None = 0.95,
        n_inducing: int = 100,
        kernel: str = "matern32",
        bound: str = "auto",
        epochs: int | None = None,
        batch_size: int | None = None,
        lr: float | None = None,
        gp_lr: float | None = None,
        weight_decay: float = 0.0,
        scale_inputs: bool = True,
        validation_fraction: float = 0.2,
        patience: int = 30,
        finish: str = "noise",
        warm_start: bool = False,
        random_state: Any = None,
        device: str = "cpu",
        verbose: bool = False,
    ) -> None:
        self.extractor = extractor
        self.c = c
        self.n_inducing = n_inducing
        self.kernel = kernel
        self.bound = bound
        self.epochs = epochs
        self.batch_size = batch_size
        self.lr = lr
        self.gp_lr = gp_lr
        self.weight_decay = weight_decay
        self.scale_inputs = scale_inputs
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.finish = finish
        self.warm_start = warm_start
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def predict(self, X: ArrayLike, return_std: bool = False, return_cov: bool = False) -> Any:
        """Mean of y, with the standard deviation of a new observation or the joint covariance.

        Both include the noise. The covariance is (N, N), or (N, N, T) for several outputs.
        """
        if return_std and return_cov:
            raise ValueError("return_std and return_cov exclude each other: ask for one of them")
        if return_cov:
            return self._joint(X)
        mean, std = self._observed(X)
        return (mean, std) if return_std else mean

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> Floats:
        """Joint draws of new observations, shape (N, n_samples) or (N, T, n_samples)."""
        mean, cov = self._joint(X)
        generator = check_random_state(random_state)
        mean = mean.reshape(len(mean), -1)
        cov = cov.reshape(len(mean), len(mean), -1)
        draws = [
            mean[:, t, None]
            + np.linalg.cholesky(cov[..., t]) @ generator.standard_normal((len(mean), n_samples))
            for t in range(mean.shape[1])
        ]
        return draws[0] if self._flat else np.stack(draws, 1)

    def uncertainty(self, X: ArrayLike) -> Floats:
        """Variance of the latent function, without noise, of the shape of `predict(X)`."""
        return self._latent_variance(X)

    def uncertainty_details(self, X: ArrayLike) -> ValueUncertainty:
        """Variance of an observation with its two parts, and the OOD score."""
        epistemic = self.uncertainty(X)
        sigma2 = self._sigma2.numpy(force=True) * self.y_scale_.std**2
        aleatoric = np.broadcast_to(sigma2, (len(epistemic), len(self.y_scale_.std)))
        aleatoric = self._shape(aleatoric.copy())
        return ValueUncertainty(epistemic + aleatoric, aleatoric, epistemic, self.ood_score(X))

    def _predictive(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return cast(Normal, self.frozen_.predict(x))

    def _latent_variance(self, X: ArrayLike) -> Floats:
        var = self._map(lambda x: self.frozen_.latent(x).var, X)
        return self._shape(var * self.y_scale_.std**2)

    @torch.no_grad()
    def _joint(self, X: ArrayLike) -> tuple[Floats, Floats]:
        h = torch.cat([self.frozen_.f(batch) for batch in self._batches(self._checked(X))])
        mean, cov = self.model_.gp.joint(h)
        noise = torch.eye(len(h), dtype=cov.dtype, device=cov.device)
        cov = cov + self._sigma2[:, None, None] * noise
        scaled = cov.permute(1, 2, 0).numpy(force=True) * self.y_scale_.std**2
        centre = self._shape(self.y_scale_.inverse(mean.numpy(force=True)))
        return centre, scaled[..., 0] if self._flat else scaled

    @property
    def _sigma2(self) -> Tensor:
        return cast(Gaussian, self.model_.likelihood).sigma2.detach()

    def _check_own_parameters(self) -> None:
        self._check_gp_parameters()
        if self.finish not in FINISHES:
            raise ValueError(f"finish={self.finish!r} is not one of {', '.join(FINISHES)}")
        if self.bound not in BOUNDS:
            raise ValueError(f"bound={self.bound!r} is not one of {', '.join(BOUNDS)}")

    def _absorb(self, known: Data, held_out: Data) -> None:
        """Once held-out rows have chosen the features, the GP on them learns from all rows."""
        if not self._learns_from_all:
            return
        x, *rest = (torch.cat(pair).to(self.device) for pair in zip(known, held_out, strict=True))
        with torch.no_grad():
            h = self.model_.f(x)
        data, n = (h, *rest), len(known[0])
        head = DUE(nn.Identity(), self.model_.gp, self.model_.likelihood, len(h))
        if self.finish == "noise" and len(held_out[0]):
            (h0, y0, *w0), (h1, y1, *w1) = [part[:n] for part in data], [part[n:] for part in data]
            sigma2 = held_out_noise(head.gp, h0, y0, h1, y1, *w0, *w1)
            cast(Gaussian, head.likelihood).set_sigma2(sigma2)
        loss = CollapsedBound(head)
        if self.finish == "gp":
            optimizer = torch.optim.Adam(head.parameters(), lr=GP_LR, fused=True)
            train(loss, data, optimizer=optimizer, epochs=GP_STEPS, progress=False)
        loss.set_q(*data)

    @property
    def _learns_from_all(self) -> bool:
        return self.finish != "nothing" and self.history_["bound"] == "collapsed"

    def _likelihood(self) -> Gaussian:
        return Gaussian(self._T)

    def _start_q(self, gp: InducingGP, h: Tensor, y: Tensor) -> None:
        """q(U) starts at N(0, I); the collapsed bound never uses it."""

    def _bound(self, data: Data) -> Objective:
        n = len(data[0])
        if self.bound == "elbo" or (self.bound == "auto" and n > COLLAPSED_ROWS):
            return self._in_batches(n, lr=2e-3, head_lr=self.gp_lr or 1e-2, bound="elbo")
        loss = CollapsedBound(self.model_)
        whole = tuple(part.to(self.device) for part in data)
        rates = self.lr or 4e-3, self.gp_lr or 5e-2
        return Objective(
            loss, None, self.epochs or 300, *rates, lambda: loss.set_q(*whole), "collapsed"
        )


BOUNDS = ("auto", "collapsed", "elbo")
COLLAPSED_ROWS = 5000
FINISHES = ("noise", "q", "gp", "nothing")
GP_STEPS, GP_LR = 60, 2e-2
