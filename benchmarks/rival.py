"""The same models in GPyTorch, with the values of ours: both sides compute the same thing."""

from collections.abc import Iterator
from contextlib import contextmanager

import gpytorch
import torch
from gpytorch.distributions import MultivariateNormal
from gpytorch.kernels import Kernel, MaternKernel, RBFKernel, ScaleKernel
from gpytorch.likelihoods import GaussianLikelihood, SoftmaxLikelihood
from gpytorch.means import ConstantMean
from gpytorch.mlls import VariationalELBO
from gpytorch.variational import (
    CholeskyVariationalDistribution,
    IndependentMultitaskVariationalStrategy,
    VariationalStrategy,
)
from torch import Tensor, nn

from due.gp import Gaussian, InducingGP
from due.methods import DUE
from due.methods.method import Plain


class RivalGP(gpytorch.models.ApproximateGP):
    """A whitened inducing-point GP for each output, as in the authors' code (y0ast/DUE, dkl.py)."""

    def __init__(self, gp: InducingGP) -> None:
        T, M = gp.m.shape
        batch = torch.Size([T]) if T > 1 else torch.Size()
        q = CholeskyVariationalDistribution(M, batch_shape=batch)
        strategy = VariationalStrategy(self, gp.Z.detach().float(), q)
        multitask = T > 1 and IndependentMultitaskVariationalStrategy(strategy, num_tasks=T)
        super().__init__(multitask or strategy)
        self.mean_module = ConstantMean(batch_shape=batch)
        self.covar_module = ScaleKernel(_kernel(gp.kernel.kind, batch), batch_shape=batch)
        self._take_values(gp, strategy, q, batch)

    def forward(self, h: Tensor) -> MultivariateNormal:
        """The prior at h."""
        return MultivariateNormal(self.mean_module(h), self.covar_module(h))

    @torch.no_grad()
    def _take_values(
        self,
        gp: InducingGP,
        strategy: VariationalStrategy,
        q: CholeskyVariationalDistribution,
        batch: torch.Size,
    ) -> None:
        self.mean_module.constant.copy_(gp.mu.float().view(batch))
        self.covar_module.outputscale = gp.kernel.outputscale.float().view(batch)
        self.covar_module.base_kernel.lengthscale = gp.kernel.lengthscale.float().view(*batch, 1, 1)
        q.variational_mean.copy_(gp.m.view(*batch, -1))
        q.chol_variational_covar.copy_(gp.L_S.view(*batch, *gp.L_S.shape[1:]))
        strategy.variational_params_initialized.fill_(1)


class RivalLoss(Plain):
    """A network and GPyTorch's GP on its features, as a method that `due.training.fit` trains.

    The loss is −ELBO/N under Gaussian noise; all values start as those of `model`.
    """

    def __init__(self, f: nn.Module, model: DUE) -> None:
        super().__init__()
        assert isinstance(model.likelihood, Gaussian)
        self.f, self.gp, self.likelihood = f, RivalGP(model.gp), GaussianLikelihood()
        self.likelihood.noise = model.likelihood.sigma2.item()
        self.elbo = VariationalELBO(self.likelihood, self.gp, num_data=model.n_data)

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """The loss of a batch without weights."""
        return -self.elbo(self.gp(self.f(x)), y[:, 0])

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """−E_q[log p(y_i | f_i)] per row."""
        return -self.likelihood.expected_log_prob(y[:, 0], self.gp(self.f(x)))


class RivalHead(nn.Module):
    """Features → class probabilities, warmed, with every cache that GPyTorch has."""

    def __init__(self, gp: InducingGP, samples: int = 32) -> None:
        super().__init__()
        self.gp, self.samples = RivalGP(gp), samples
        self.likelihood = SoftmaxLikelihood(num_classes=gp.T, mixing_weights=False)
        self.eval()

    def forward(self, h: Tensor) -> Tensor:
        """Class probabilities, the mean over the samples; all rows are sampled jointly."""
        with self._at_its_best():
            return self.likelihood(self.gp(h)).probs.mean(0)

    def independent(self, h: Tensor) -> Tensor:
        """The same with the rows made independent first, as the authors' code does."""
        with self._at_its_best():
            return self.likelihood(self.gp(h).to_data_independent_dist()).probs.mean(0)

    @contextmanager
    def _at_its_best(self) -> Iterator[None]:
        with (
            torch.no_grad(),
            gpytorch.settings.fast_pred_var(),
            gpytorch.settings.skip_posterior_variances(False),
            gpytorch.settings.num_likelihood_samples(self.samples),
        ):
            yield


def _kernel(kind: str, batch: torch.Size) -> Kernel:
    smoothness = {"matern12": 0.5, "matern32": 1.5, "matern52": 2.5}
    if kind in smoothness:
        return MaternKernel(nu=smoothness[kind], batch_shape=batch)
    return RBFKernel(batch_shape=batch)
