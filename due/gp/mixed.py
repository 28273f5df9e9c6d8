"""Effects under several models at once: a mixture of normals, by its mean and variance.

With weights w_k that sum to 1 and a normal of mean m_k and variance v_k under model k,
mean = Σ w_k m_k and var = Σ w_k (v_k + (m_k − mean)²): where models disagree, it is wider.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp.frozen import FrozenEffects
from due.gp.likelihoods import Normal


class MixedEffects(nn.Module):
    """Several `FrozenEffects` of the same people, which answer together.

    Parameters
    ----------
    members
        The models.
    weights
        One for each; their sum is 1.
    """

    members: Any  # of an nn.ModuleList, which knows no types
    weights: Tensor

    def __init__(self, members: list[FrozenEffects], weights: Float[Tensor, " K"]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", weights.detach().double().clone())

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        return self._mean([one.outcomes(x) for one in self.members])

    def difference(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of f1 − f0, (N, 1) each."""
        return self._mixed([one.difference(x) for one in self.members])

    def average(self, x: Float[Tensor, "N D"]) -> Normal:
        """Mean and variance of the average difference, (1, 1) each."""
        return self._mixed([one.average(x) for one in self.members])

    def joint_difference(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Mean (N, 1) and covariance (1, N, N) of the differences of all people."""
        means, covs = zip(*(one.joint_difference(x) for one in self.members), strict=True)
        mean = self._mean(means)
        away = [(each - mean).mT[..., None] for each in means]  # (1, N, 1)
        return mean, self._mean([c + a @ a.mT for c, a in zip(covs, away, strict=True)])

    def overlap(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """Per arm, the share of the prior variance that its people remove."""
        return self._mean([one.overlap(x) for one in self.members])

    def leave_one_out(self, arm: int) -> Float[Tensor, " P"]:
        """That share at each of the arm's people, by the others."""
        return self._mean([one.leave_one_out(arm) for one in self.members])

    def _mixed(self, each: list[Normal]) -> Normal:
        mean = self._mean([one.mean for one in each])
        return Normal(mean, self._mean([one.var + (one.mean - mean).square() for one in each]))

    def _mean(self, each: list[Tensor] | tuple[Tensor, ...]) -> Tensor:
        weighted = [w * one for w, one in zip(self.weights, each, strict=True)]
        return torch.stack(weighted).sum(0)
