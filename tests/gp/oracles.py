"""What the GP must equal: numpy in a few lines, and GPyTorch with copied parameters."""

import warnings
from typing import Any

import numpy as np
import torch
from scipy.spatial.distance import cdist
from torch import Tensor

from due.gp import InducingGP, Kernel

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # it scripts functions when imported
    import gpytorch

KINDS = ("rbf", "matern12", "matern32", "matern52", "rq")


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def random_gp(kind: str = "rbf", T: int = 2, M: int = 6, J: int = 3, **kwargs) -> InducingGP:
    """A GP in which every parameter has a value of its own."""
    gp = InducingGP(2 * normal(M, J), T, 1.5, kind, **kwargs)
    with torch.no_grad():
        for seed, parameter in enumerate(gp.parameters()):
            if parameter is not gp.Z:
                parameter.add_(0.4 * normal(*parameter.shape, seed=10 + seed))
        gp.raw_L_S.copy_(gp.raw_L_S.tril())
    return gp


def unshared(gp: InducingGP) -> InducingGP:
    """The same GP with a kernel an output, as the oracles read it."""
    twin = InducingGP(gp.Z, gp.T, kernel=gp.kernel.kind, jitter=gp.jitter)
    state = gp.state_dict()
    for name, value in twin.state_dict().items():
        value.copy_(state[name].expand_as(value))
    return twin


# numpy


def kernel(kernel: Kernel, a, b, t: int = 0) -> np.ndarray:
    """s κ(‖a − b‖ / l) from the textbook, Rasmussen & Williams (2006), chapter 4."""
    s, l = kernel.outputscale[t].item(), kernel.lengthscale[t].item()  # noqa: E741
    r = cdist(np.asarray(a.detach()), np.asarray(b.detach())) / l
    if kernel.kind == "rbf":
        return s * np.exp(-(r**2) / 2)
    if kernel.kind == "matern12":
        return s * np.exp(-r)
    if kernel.kind == "matern32":
        return s * (1 + 3**0.5 * r) * np.exp(-(3**0.5) * r)
    if kernel.kind == "matern52":
        return s * (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r)
    assert kernel.raw_alpha is not None
    alpha = torch.nn.functional.softplus(kernel.raw_alpha)[t].item()
    return s * (1 + r**2 / (2 * alpha)) ** -alpha


def log_normal(y: np.ndarray, mean: float, cov: np.ndarray) -> float:
    r = y - mean
    _, log_det = np.linalg.slogdet(2 * np.pi * cov)
    return -0.5 * (r @ np.linalg.solve(cov, r) + log_det)


def exact_posterior(K, k, kk, y, mean: float, sigma2: float) -> tuple[np.ndarray, np.ndarray]:
    G = np.linalg.solve(K + sigma2 * np.eye(len(K)), k)
    return mean + G.T @ (y - mean), kk - k.T @ G


def titsias(K_ZZ, K_ZX, k_XX, y, mean: float, sigma2: float) -> float:
    """log N(y | μ, Q + σ² I) − tr(K − Q) / 2σ², Titsias (2009), equation 9."""
    Q = K_ZX.T @ np.linalg.solve(K_ZZ, K_ZX)
    trace = k_XX.sum() - np.trace(Q)
    return log_normal(y, mean, Q + sigma2 * np.eye(len(y))) - trace / (2 * sigma2)


def unwhitened(gp: InducingGP, h: Tensor, t: int) -> tuple[np.ndarray, np.ndarray]:
    """q(f_t(h)) from q(u) = N(m_u, S_u), u = μ + √s L v: no whitened shortcut."""
    s = gp.kernel.outputscale[t].item()
    K = kernel(gp.kernel, gp.Z, gp.Z, t) + gp.jitter * s * np.eye(len(gp.Z))
    k, kk = kernel(gp.kernel, gp.Z, h, t), kernel(gp.kernel, h, h, t)
    R, L_S = np.linalg.cholesky(K), gp.L_S[t].detach().numpy()
    S_u, G = R @ L_S @ L_S.T @ R.T, np.linalg.solve(K, k)
    mean = gp.mu[t].item() + G.T @ (R @ gp.m[t].detach().numpy())
    return mean, kk - G.T @ k + G.T @ S_u @ G


# GPyTorch


class GPyTorchModel(gpytorch.models.ApproximateGP):
    """The same GP, in GPyTorch: whitened, T independent outputs, no learning of anything."""

    def __init__(self, gp: InducingGP, jitter: float):
        batch = torch.Size([gp.T]) if gp.T > 1 else torch.Size()
        distribution = gpytorch.variational.CholeskyVariationalDistribution(len(gp.Z), batch)
        strategy = gpytorch.variational.VariationalStrategy(
            self, gp.Z.detach().clone(), distribution, jitter_val=jitter
        )
        if gp.T > 1:
            strategy = gpytorch.variational.IndependentMultitaskVariationalStrategy(strategy, gp.T)
        super().__init__(strategy)
        self.mean_module = gpytorch.means.ConstantMean(batch_shape=batch)
        self.covar_module = gpytorch.kernels.ScaleKernel(
            _base_kernel(gp.kernel.kind, batch), batch_shape=batch
        )
        self.double()
        self._copy(gp, strategy if gp.T == 1 else strategy.base_variational_strategy)

    @torch.no_grad()
    def _copy(self, gp: InducingGP, strategy) -> None:
        strategy.variational_params_initialized.fill_(1)
        distribution = strategy._variational_distribution
        distribution.variational_mean.copy_(gp.m.squeeze(0))
        distribution.chol_variational_covar.copy_(gp.L_S.squeeze(0))
        self.mean_module.raw_constant.copy_(gp.mu.squeeze(0))
        scale, base = self.covar_module, self.covar_module.base_kernel
        scale.outputscale = gp.kernel.outputscale.squeeze(0)
        base.lengthscale = gp.kernel.lengthscale.reshape(base.raw_lengthscale.shape)
        if gp.kernel.raw_alpha is not None:
            base.raw_alpha.copy_(gp.kernel.raw_alpha.reshape(base.raw_alpha.shape))

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def joint(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Mean (N, T) and covariance (T, N, N), each output apart."""
        strategy: Any = self.variational_strategy
        strategy = getattr(strategy, "base_variational_strategy", strategy)
        q = strategy(h, diag=False)
        mean, cov = q.mean, q.covariance_matrix
        return (mean[:, None], cov[None]) if mean.dim() == 1 else (mean.mT, cov)

    def elbo(self, h: Tensor, y: Tensor, sigma2: float, n_data: int) -> Tensor:
        """ELBO / N of a batch under Gaussian noise."""
        if y.shape[1] == 1:
            likelihood, y = gpytorch.likelihoods.GaussianLikelihood(), y[:, 0]
        else:
            likelihood = gpytorch.likelihoods.MultitaskGaussianLikelihood(
                y.shape[1], has_task_noise=False
            )
        likelihood.double()
        likelihood.noise = torch.tensor(sigma2, dtype=torch.float64)  # not float32
        return gpytorch.mlls.VariationalELBO(likelihood, self, n_data)(self(h), y)


def _base_kernel(kind: str, batch: torch.Size):
    if kind == "rbf":
        return gpytorch.kernels.RBFKernel(batch_shape=batch)
    if kind == "rq":
        return gpytorch.kernels.RQKernel(batch_shape=batch)
    return gpytorch.kernels.MaternKernel(int(kind[-2]) / 2, batch_shape=batch)
