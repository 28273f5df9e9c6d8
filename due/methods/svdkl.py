"""SV-DKL (Wilson et al., 2016): logits A g(h), one GP g_j a feature on a grid U of M points.

    g_j(h) = w(h_j)ᵀ u_j,   p(u_j) = N(μ, k(U, U)),   q(u_j) = N(m_j, S_j)
    q(g_j(h)) = N(wᵀ m_j,  wᵀ S_j w)

where w(h_j) holds the four weights of cubic interpolation between the grid's points next to h_j.
Grid, interpolation, kernel and q(U) are GPyTorch's: `pip install 'due[rivals]'`.
"""

import warnings
from functools import partial
from importlib import import_module
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.quasirandom import SobolEngine

from due.gp import Gaussian, Normal
from due.gp.shapes import Features, Inputs, Labels, PerRow, Scalar, Values, Weights
from due.gp.softmax import two_classes
from due.lipschitz import fold
from due.methods.method import Method, Train, weighted_mean
from due.methods.ready import ready
from due.rows.source import Source

LARGEST = 2**22  # numbers of an integral or an interpolation held at once
POINTS = 4  # of the grid that a value is interpolated from
JITTER = 1e-3  # on the prior, as GPyTorch has it
SMALLEST = 1e-30  # probability whose logarithm float32 still holds


class SVDKL(Method):
    """Abstract: features are scaled to the grid by the range of the training rows."""

    gp: "GridGP"
    bound_name = "elbo"
    inducing = "free"

    def __init__(self, f: nn.Module, gp: "GridGP", n_data: int = 1) -> None:
        super().__init__()
        self.f, self.gp, self.n_data = f, gp, n_data

    def start(self, source: Source, seed: int) -> None:
        """Scale by the range of all training rows."""
        self.n_data = len(source)
        self.settle(source)

    @torch.no_grad()
    def settle(self, source: Source) -> None:
        """Scale from now on by the range of all training rows instead of the last batch's."""
        training, device = self.training, next(self.gp.parameters()).device
        self.eval()
        ranges = [torch.stack(self.f(x.to(device)).aminmax()) for x, *_ in source.chunks()]
        low, high = torch.stack(ranges).unbind(-1)  # of each chunk
        self.gp.set_range(low.min(), high.max())
        self.train(training)

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """Nothing follows training."""

    def predictor(self) -> "SVDKL":
        """Norms folded, q(U) taken as final, in float64."""
        frozen = ready(fold(self))
        frozen.gp.freeze()
        return frozen


class SVDKLSoftmax(SVDKL):
    """SV-DKL for classes: p(y | x) = E[softmax(A g(f(x)))].

    A is started and used as in GPyTorch's `SoftmaxLikelihood`, which itself takes the transposed
    input where a batch has as many rows as there are features.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`, or not.
    gp
        `GridGP` on its J features.
    T
        Number of classes.
    n_data
        Number of rows N of the training set; `start` sets it.
    samples
        Random samples of the training loss.
    """

    by_entropy = True
    epsilon: Tensor

    def __init__(
        self, f: nn.Module, gp: "GridGP", T: int, n_data: int = 1, samples: int = 10
    ) -> None:
        super().__init__(f, gp, n_data)
        self.samples, self.n_classes = samples, T
        self.mixing = nn.Parameter(torch.randn(T, gp.J) / gp.J)  # A
        self.register_buffer("epsilon", _points(T))

    def forward(self, x: Inputs, y: Labels, weights: Weights = None) -> Scalar:
        """−ELBO/N = KL / N − mean_i w_i E_q[log softmax(A g_i)_{y_i}]; deterministic in eval."""
        mean, var = self.gp(self.f(x))
        log_prob = self._log_prob(mean, var).gather(-1, y[:, None])[:, 0]
        return self.gp.kl() / self.n_data - weighted_mean(log_prob, weights)

    def losses(self, x: Inputs, y: Labels) -> PerRow:
        """−log p(y_i | x_i)."""
        probs = self.predict(x).gather(-1, y[:, None])[:, 0]
        return -probs.clamp_min(SMALLEST).log()

    def latent(self, x: Inputs) -> Normal:
        """Mean and variance of the logits A g; they are correlated, which `predict` knows."""
        mean, var = self.gp(self.f(x))
        A = self.mixing.to(mean)
        return Normal(mean @ A.mT, var @ A.square().mT)

    def predict(self, x: Inputs) -> Values:
        """Class probabilities E_q[softmax(A g)]: quadrature for two classes, else fixed points."""
        return self.probabilities(self.f(x))

    def probabilities(self, h: Features) -> Values:
        """Class probabilities from features."""
        return self._expectation(partial(torch.softmax, dim=0), *self.gp(h))

    def _log_prob(self, mean: Tensor, var: Tensor) -> Tensor:
        """E_q[log softmax(A g)], (N, T)."""
        if not self.training:
            return self._expectation(partial(torch.log_softmax, dim=0), mean, var)
        epsilon = torch.randn(self.samples, *mean.shape, dtype=mean.dtype, device=mean.device)
        logits = (mean + var.sqrt() * epsilon) @ self.mixing.to(mean).mT  # (S, N, T)
        return torch.log_softmax(logits, -1).mean(0)

    def _expectation(self, g: Any, mean: Tensor, var: Tensor) -> Tensor:
        """E[g(A g_i)] of logits N(A mean, A diag(var) Aᵀ), (N, T)."""
        A = self.mixing.to(mean)
        logits, cov = mean @ A.mT, (A * var[:, None]) @ A.mT  # (N, T), (N, T, T)
        if len(A) == 2:  # as if independent, but with the variance that their difference has
            gap = cov[:, 0, 0] + cov[:, 1, 1] - 2 * cov[:, 0, 1]
            halves = (gap / 2).clamp_min(0)[:, None].expand(-1, 2)
            return two_classes(lambda gap: g(torch.stack([-gap, gap]) / 2), logits, halves).mT
        L = _root(cov.double()).float()  # float32 will do: the sums of the integral do not cancel
        points = self.epsilon.float().mT  # (T, S)
        rows = max(1, LARGEST // points.numel())
        parts = []
        for m, root in zip(logits.float().mT.split(rows, 1), L.split(rows), strict=True):
            spread = (root @ points).transpose(0, 1)  # (T, n, S): g takes classes first
            parts.append(g(m[..., None] + spread).mean(-1).mT)
        return torch.cat(parts).to(mean.dtype)


class SVDKLGaussian(SVDKL):
    """SV-DKL for regression: y_t = Σ_j A_tj g_j(f(x)) + b_t + N(0, σ²), all in closed form.

    The prior variance of y's latent part is that of one g_j: A starts as N(0, 1/J).

    Parameters
    ----------
    f, gp, T, n_data
        As in `SVDKLSoftmax`, with T outputs.
    sigma2
        Initial noise variance, learned.
    """

    def __init__(
        self, f: nn.Module, gp: "GridGP", T: int, n_data: int = 1, sigma2: float = 0.6931
    ) -> None:
        super().__init__(f, gp, n_data)
        self.mixing = nn.Parameter(torch.randn(T, gp.J) / gp.J**0.5)  # A
        self.b = nn.Parameter(torch.zeros(T))
        self.likelihood = Gaussian(1, sigma2)

    def forward(self, x: Inputs, y: Values, weights: Weights = None) -> Scalar:
        """−ELBO/N = KL / N − mean_i w_i E_q[log N(y_i | A g_i + b, σ²)]."""
        return self.gp.kl() / self.n_data + weighted_mean(self.losses(x, y), weights)

    def losses(self, x: Inputs, y: Values) -> PerRow:
        """−E_q[log N(y_i | A g_i + b, σ²)]."""
        return -self.likelihood.expected_log_prob(*self.latent(x), y)

    def latent(self, x: Inputs) -> Normal:
        """N(A mean + b, Σ_j A_tj² var_j), without noise."""
        return self._latent(self.f(x))

    def predict(self, x: Inputs) -> Normal:
        """A new observation, noise included."""
        return self.likelihood.predictive(*self.latent(x))

    def moments(self, h: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the function, and of the noise, each (N, T)."""
        mean, var = self._latent(h)
        return mean, var, self.likelihood.sigma2.to(var.dtype).expand_as(var)

    def _latent(self, h: Tensor) -> Normal:
        mean, var = self.gp(h)
        A = self.mixing.to(mean)
        return Normal(mean @ A.mT + self.b, var @ A.square().mT)


class GridGP(nn.Module):
    """J independent one-dimensional GPs with one RBF kernel and one constant mean, in float64.

    h is scaled to [−9.5, 9.5] by its smallest and largest entry: those of the batch in training,
    those of the last one (or of `set_range`) in eval mode, where h is clipped to them.

    Parameters
    ----------
    J
        Number of features.
    M
        Points of the grid.
    bound
        The grid covers [−bound, bound].
    """

    def __init__(self, J: int, M: int = 64, bound: float = 10.0) -> None:
        super().__init__()
        gpytorch = _engine()
        self.J, self.M = J, M
        self.frozen: tuple[Tensor, Tensor] | None = None
        self.scale = gpytorch.utils.grid.ScaleToBounds(-bound, bound)
        self.prior = _Prior(gpytorch)
        self.strategy = gpytorch.variational.GridInterpolationVariationalStrategy(
            self.prior,
            M,
            [(-bound, bound)],
            gpytorch.variational.CholeskyVariationalDistribution(M, torch.Size([J])),
        )
        self.double()
        edge = bound + 2 * bound / (M - 2)
        grid = torch.linspace(-edge, edge, M, dtype=torch.float64)[:, None]
        self.strategy.grid.copy_(grid)  # as it was, but not rounded to float32
        self.strategy.inducing_points.copy_(grid)
        q = self.strategy._variational_distribution
        q.initialize_variational_distribution(self.strategy.prior_distribution)  # plus 1e-3 noise
        self.strategy.variational_params_initialized.fill_(1)
        self.strategy._clear_cache()

    def forward(self, h: Features) -> tuple[Features, Features]:
        """Mean wᵀ m_j and variance wᵀ S_j w of each g_j(h_n)."""
        rows = max(1, LARGEST // (self.J * self.M))
        parts = [self._moments(part) for part in self.scale(h.double()).split(rows)]
        mean, var = (torch.cat(part, 1).mT for part in zip(*parts, strict=True))
        out = torch.promote_types(h.dtype, torch.float32)
        return mean.to(out), var.clamp_min(1e-12).to(out)

    def _moments(self, h: Tensor) -> tuple[Tensor, Tensor]:
        index, w = self.strategy._compute_grid(h.mT[..., None])  # (J, N, 4)
        return self._dense(index, w) if self.frozen is None else self._sparse(index, w)

    def _dense(self, index: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """W m and ‖W L_S‖² for W, (J, N, M), with w in it: gradients are products too."""
        W = w.new_zeros(*w.shape[:2], self.M).scatter_add(-1, index, w)
        q = self.strategy._variational_distribution
        mean = (W @ q.variational_mean[..., None])[..., 0]
        return mean, (W @ q.chol_variational_covar.tril()).square().sum(-1)

    def _sparse(self, index: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """The same by the four neighbours alone."""
        assert self.frozen is not None
        m, blocks = self.frozen
        j = torch.arange(self.J, device=w.device)[:, None]  # (J, 1)
        near = blocks[j, index[..., 0]]  # (J, N, 4, 4)
        return (w * m[j[..., None], index]).sum(-1), ((near @ w[..., None])[..., 0] * w).sum(-1)

    @torch.no_grad()
    def freeze(self) -> None:
        """Take q(U) as final: m, and S[j, s : s + 4, s : s + 4] for each start s."""
        q = self.strategy._variational_distribution
        L = q.chol_variational_covar.tril()
        blocks = (L @ L.mT).unfold(1, POINTS, 1).unfold(2, POINTS, 1)  # (J, M − 3, M − 3, 4, 4)
        self.frozen = (
            q.variational_mean,
            blocks.diagonal(dim1=1, dim2=2).movedim(-1, 1).contiguous(),
        )

    def kl(self) -> Scalar:
        """Σ_j KL(q(u_j) ‖ p(u_j)): all j share one prior, which is factorised once."""
        prior = self.prior(self.strategy.inducing_points)
        jitter = JITTER * torch.eye(self.M, dtype=torch.float64, device=prior.mean.device)
        L = torch.linalg.cholesky(prior.covariance_matrix + jitter)
        q = self.strategy._variational_distribution
        L_S = q.chol_variational_covar.tril()  # (J, M, M)
        gap = q.variational_mean - prior.mean  # (J, M)
        columns = torch.cat([L_S.movedim(1, 0).flatten(1), gap.mT], 1)
        white = torch.linalg.solve_triangular(L, columns, upper=False)
        log_det_S = 2 * L_S.diagonal(dim1=1, dim2=2).abs().log().sum()
        log_det = 2 * self.J * L.diagonal().log().sum() - log_det_S
        return (white.square().sum() - self.J * self.M + log_det) / 2

    @torch.no_grad()
    def set_range(self, low: Scalar, high: Scalar) -> None:
        """Features in [low, high] are scaled to the grid in eval mode."""
        self.scale.min_val.data = low.double()
        self.scale.max_val.data = high.double()


class _Prior(nn.Module):
    """p(u) = N(μ, s exp(−r²/2l²)), as GPyTorch's strategy wants it."""

    def __init__(self, gpytorch: Any) -> None:
        super().__init__()
        self.mean = gpytorch.means.ConstantMean()
        self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, u: Float[Tensor, "M 1"]) -> Any:
        """The prior at these points."""
        normal = _engine().distributions.MultivariateNormal
        return normal(self.mean(u), self.kernel(u))


def check_grid(name: str, M: Any) -> None:
    """Raise if so many points are too few to interpolate between."""
    if not (isinstance(M, int) and M >= POINTS + 2):
        raise ValueError(
            f"{name}={M!r} is too few to interpolate between: give at least {POINTS + 2}"
        )


def _points(T: int, S: int = 1024) -> Tensor:
    """Standard normals (S, T), quasi-random and closed under ε → −ε, always the same."""
    u = SobolEngine(T, scramble=True, seed=0).draw(S // 2, dtype=torch.float64)
    half = torch.special.ndtri(u.clamp(1e-9, 1 - 1e-9))
    return torch.cat([half, -half])


def _root(cov: Tensor) -> Tensor:
    """L, cov ≈ L Lᵀ, also where cov is singular."""
    jitter = 1e-8 * cov.diagonal(dim1=-2, dim2=-1).mean(-1)
    return torch.linalg.cholesky(cov + jitter[:, None, None] * torch.eye(cov.shape[-1]).to(cov))


def _engine() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # it scripts functions on import
            return import_module("gpytorch")
    except ImportError as error:
        raise ImportError("SV-DKL is built on gpytorch: pip install 'due[rivals]'") from error
