"""What a predictor answers, as named tensors; what a method does not know is None."""

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class ClassAnswer(NamedTuple):
    """Classes: entropies are in nats."""

    probabilities: Float[Tensor, "N T"]
    entropy: Float[Tensor, " N"]  # of the probabilities
    aleatoric: Float[Tensor, " N"] | None  # expected entropy: what no more data would remove
    epistemic: Float[Tensor, " N"] | None  # the difference of the two
    latent_variance: Float[Tensor, " N"] | None  # mean over classes
    ood_score: Float[Tensor, " N"]  # higher is more foreign
    ood_pvalue: Float[Tensor, " N"] | None = None  # of such a score, if the row is not foreign


class ValueAnswer(NamedTuple):
    """Regression, in the units of y (variances in their square)."""

    mean: Float[Tensor, "N T"]
    latent_variance: Float[Tensor, "N T"]  # of the function, without noise
    noise: Float[Tensor, "N T"]  # variance of an observation around it
    ood_score: Float[Tensor, " N"]
    ood_pvalue: Float[Tensor, " N"] | None = None


class EffectAnswer(NamedTuple):
    """Treatment effects, in the units of y."""

    effect: Float[Tensor, " N"]  # E[y | x, t = 1] − E[y | x, t = 0]
    variance: Float[Tensor, " N"] | None  # of the effect, without noise
    outcomes: Float[Tensor, "N 2"]  # E[y | x, t] without and with treatment
    ood_score: Float[Tensor, " N"] | None  # 1 − the smaller of the two arms' overlap


def entropy(p: Float[Tensor, "N T"]) -> Float[Tensor, " N"]:
    """−Σ_c p_c log p_c."""
    return torch.special.entr(p).sum(-1)
