"""One exact Gaussian process an arm: y | t ~ N(μ_t, k_t(x, x') + σ_t² I), τ = f_1 − f_0."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import softplus

from due import archive
from due.baselines.effect_network import fit_scales, recall_known, what_is_known
from due.estimators.checks import check_whole
from due.estimators.effects import Posterior, Study, UncertainEffects
from due.estimators.rows import Floats, Scale
from due.estimators.saved import Found, Memory, SavedEstimator, Tensors, part, prefixed
from due.gp.exact import log_marginal_likelihood, posterior
from due.gp.kernels import Kernel, inverse_softplus

ROWS = 500  # at once: their joint covariance is a square
SMALLEST_SIGMA2 = 1e-6  # in units of Var[y]


class ExactGP(nn.Module):
    """The GP of one arm, with its data."""

    def __init__(self, x: Float[Tensor, "N D"], y: Float[Tensor, " N"], kind: str) -> None:
        super().__init__()
        self.x, self.y = x, y[:, None]
        self.kernel = Kernel(kind, 1, float(x.shape[1]) ** 0.5, 1.0)
        self.raw_sigma2 = nn.Parameter(inverse_softplus(0.1, 1))
        self.mu = nn.Parameter(y.mean()[None].clone())

    @property
    def sigma2(self) -> Float[Tensor, " 1"]:
        """σ², at least 1e-6."""
        return softplus(self.raw_sigma2) + SMALLEST_SIGMA2

    def forward(self) -> Float[Tensor, ""]:
        """−log p(y) / N."""
        total = log_marginal_likelihood(self.kernel, self.x, self.y, self.sigma2, self.mu).total
        return -total[0] / len(self.x)

    def learn(self, steps: int) -> None:
        """Maximise the marginal likelihood by L-BFGS."""
        optimizer = torch.optim.LBFGS(
            self.parameters(), max_iter=steps, line_search_fn="strong_wolfe"
        )

        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = self()
            loss.backward()
            return loss

        optimizer.step(closure)

    @torch.no_grad()
    def predict(self, x: Float[Tensor, "P D"]) -> tuple[Float[Tensor, " P"], Float[Tensor, "P P"]]:
        """Mean and covariance of f(x), without noise."""
        mean, cov = posterior(self.kernel, self.x, self.y, self.sigma2, x, self.mu)
        return mean[:, 0], cov[0]


class ArmGP(UncertainEffects, SavedEstimator):
    """Two independent exact GPs, for untreated and for treated people.

    Each has a constant mean, one length scale, an output scale and a noise, which maximise its
    marginal likelihood. Var[f1 − f0] = Var[f1] + Var[f0]. It needs no validation and learns from
    those people too. Nothing in it is random.

    Parameters
    ----------
    kernel
        "rbf", "matern12", "matern32", "matern52" or "rq".
    steps
        The most steps of L-BFGS.

    Attributes
    ----------
    arms_
        The two `ExactGP`s.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=100)
    >>> model = ArmGP().fit(Y, T, X)
    >>> bool(abs(model.ate(X) - 3) < 0.2)
    True
    """

    _fitted = "arms_"
    arms_: tuple[ExactGP, ExactGP]
    scale_: Scale
    y_scale_: Scale

    def __init__(self, *, kernel: str = "matern32", steps: int = 100) -> None:
        self.kernel = kernel
        self.steps = steps

    def _fit(self, study: Study, validation: Study | None) -> None:
        check_whole("steps", self.steps)
        study = study.join(validation)
        self.scale_, self.y_scale_ = fit_scales(study)
        x = torch.as_tensor(self.scale_(study.X))
        y = torch.as_tensor(self.y_scale_(study.y[:, None])[:, 0])
        treated = torch.as_tensor(study.t == 1)
        untreated_gp = ExactGP(x[~treated], y[~treated], self.kernel)
        treated_gp = ExactGP(x[treated], y[treated], self.kernel)
        for gp in (untreated_gp, treated_gp):
            gp.learn(self.steps)
        self.arms_ = untreated_gp, treated_gp

    def _memory(self) -> Memory:
        untreated, treated = (
            prefixed(f"arm{t}", {**gp.state_dict(), "x": gp.x, "y": gp.y[:, 0]})
            for t, gp in enumerate(self.arms_)
        )
        return Memory(what_is_known(self), {}, {**untreated, **treated})

    def _recall(self, found: Found) -> None:
        recall_known(self, found.config["estimator"])
        gp0, gp1 = (self._rebuild(part(f"arm{t}", found.tensors)) for t in (0, 1))
        self.arms_ = gp0, gp1

    def _rebuild(self, tensors: Tensors) -> ExactGP:
        gp = ExactGP(tensors.pop("x"), tensors.pop("y"), self.kernel)
        return archive.load_state(gp, tensors)

    def _outcomes(self, X: Floats) -> Floats:
        parts = [[gp.predict(x)[0] for gp in self.arms_] for x in self._batches(X)]
        means = torch.cat([torch.stack(part, 1) for part in parts])
        return self.y_scale_.inverse(means.numpy())

    def _posterior(self, X: Floats) -> Posterior:
        outcomes = self._outcomes(X)
        parts = [[gp.predict(x)[1].diagonal() for gp in self.arms_] for x in self._batches(X)]
        var = torch.cat([torch.stack(part).sum(0) for part in parts]).clamp_min(0).numpy()
        return Posterior(outcomes[:, 1] - outcomes[:, 0], var * self.y_scale_.std**2)

    def _average(self, X: Floats) -> tuple[float, float]:
        x = torch.as_tensor(self.scale_(X))
        (mean0, cov0), (mean1, cov1) = (gp.predict(x) for gp in self.arms_)
        std = float(self.y_scale_.std[0])
        mean, var = float((mean1 - mean0).mean()), float((cov0 + cov1).mean())
        return mean * std, max(var, 0.0) * std**2

    def _batches(self, X: Floats) -> tuple[Tensor, ...]:
        return torch.as_tensor(self.scale_(X)).split(ROWS)
