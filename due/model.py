"""DUE = features + inducing-point GP + likelihood: DUE(x, y) = −ELBO/N, predict(x) = p(y | x)."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from due.gp import InducingGP, Likelihood, Normal, Softmax, collapsed_bound, set_optimal_q


class DUE(nn.Module):
    """A deep kernel GP on the features of any network, trained by maximising the ELBO.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`.
    gp
        `InducingGP` on those features.
    likelihood
        `Gaussian` or `Softmax`.
    n_data
        Number of rows N of the training set, whatever their weights.

    Examples
    --------
    >>> import torch
    >>> from due.gp import Gaussian, InducingGP
    >>> model = DUE(torch.nn.Linear(3, 2), InducingGP(torch.randn(5, 2)), Gaussian(), n_data=100)
    >>> loss = model(torch.randn(8, 3), torch.randn(8, 1))
    >>> model.predict(torch.randn(4, 3)).mean.shape
    torch.Size([4, 1])
    """

    def __init__(
        self, f: nn.Module, gp: InducingGP, likelihood: Likelihood, n_data: int | float
    ) -> None:
        super().__init__()
        self.f, self.gp, self.likelihood, self.n_data = f, gp, likelihood, n_data

    def forward(
        self,
        x: Shaped[Tensor, "N ..."],
        y: Shaped[Tensor, "N ..."],
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, ""]:
        """−ELBO/N = KL(q(U) ‖ p(U)) / N − mean_i w_i E_q[log p(y_i | f_i)]."""
        return self.loss(self.f(x), y, weights)

    def loss(
        self,
        h: Float[Tensor, "N J"],
        y: Shaped[Tensor, "N ..."],
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, ""]:
        """−ELBO/N of rows whose features are at hand."""
        mean, var, kl = self.gp.with_kl(h)
        log_prob = self.likelihood.expected_log_prob(mean, var, y)
        fit = log_prob.mean() if weights is None else (weights * log_prob).mean()
        return kl / self.n_data - fit

    def expected_log_prob(
        self, x: Shaped[Tensor, "N ..."], y: Shaped[Tensor, "N ..."]
    ) -> Float[Tensor, " N"]:
        """E_q[log p(y_i | f_i)] of each row; its mean, negated, is the paper's "NLL"."""
        return self.likelihood.expected_log_prob(*self.latent(x), y)

    def latent(self, x: Shaped[Tensor, "N ..."]) -> Normal:
        """q(f(x)), row by row, without noise."""
        return Normal(*self.gp(self.f(x)))

    def predict(self, x: Shaped[Tensor, "N ..."]) -> Normal | Tensor:
        """Normal of a new observation (noise included), or class probabilities."""
        return self.likelihood.predictive(*self.latent(x))


class CollapsedBound(nn.Module):
    """Full-batch loss of a `DUE` with Gaussian noise whose q(U) is optimal at every step.

    `CollapsedBound(model)(x, y)` is −bound/N over all the data; `set_q(x, y)` then stores the
    optimal q(U) in the model, which predicts as any other.
    """

    def __init__(self, model: DUE) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        x: Shaped[Tensor, "N ..."],
        y: Float[Tensor, "N T"],
        weights: Float[Tensor, " N"] | None = None,
    ) -> Float[Tensor, ""]:
        """−(Titsias's bound) / N."""
        model = self.model
        return -collapsed_bound(model.gp, model.f(x), y, self._sigma2, weights) / len(y)

    @torch.no_grad()
    def set_q(
        self,
        x: Shaped[Tensor, "N ..."],
        y: Float[Tensor, "N T"],
        weights: Float[Tensor, " N"] | None = None,
    ) -> None:
        """Store the optimal q(U) for the features as they are in eval mode (no dropout)."""
        model, training = self.model, self.model.training
        model.eval()
        set_optimal_q(model.gp, model.f(x), y, self._sigma2, weights)
        model.train(training)

    @property
    def _sigma2(self) -> Tensor:
        if isinstance(self.model.likelihood, Softmax):
            raise TypeError("the collapsed bound needs a Gaussian likelihood; use DUE for classes")
        return self.model.likelihood.sigma2
