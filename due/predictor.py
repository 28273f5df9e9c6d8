"""Raw rows in, an `Answer` out: input scale, network, head and the target's scale in one module.

Estimators, files and exports all ask a predictor. `torch.export` takes it with a dynamic batch.
"""

from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from due.gp import Gaussian, Normal, StudentT
from due.gp.levels import Levels
from due.methods.answer import ClassAnswer, EffectAnswer, ValueAnswer, entropy
from due.rows.scale import Scale

PEOPLE = 2048  # encoded at once


class Standard(nn.Module):
    """x ↦ (x − mean) / std in float64, and back."""

    mean: Tensor
    std: Tensor

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.register_buffer("mean", torch.as_tensor(scale.mean, dtype=torch.float64))
        self.register_buffer("std", torch.as_tensor(scale.std, dtype=torch.float64))

    def forward(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N ..."]:
        """(x − mean) / std."""
        return (x.double() - self.mean) / self.std

    def inverse(self, z: Float[Tensor, "N ..."]) -> Float[Tensor, "N ..."]:
        """Std · z + mean."""
        return z * self.std + self.mean


class ClassPredictor(nn.Module):
    """Class probabilities, their entropy with its parts, and the OOD score.

    Parameters
    ----------
    model
        What a method of classes gives as its `predictor()`.
    scale
        Of the inputs.
    """

    def __init__(self, model: Any, scale: Scale) -> None:
        super().__init__()
        self.scale, self.model = Standard(scale), model

    def forward(self, x: Shaped[Tensor, "N ..."]) -> ClassAnswer:
        """Everything about each row."""
        h, *more = _look(self.model, self.scale(x))
        p = _normalised(self.model.probabilities(h))
        total = entropy(p)
        foreign = self.model.foreign(h, *more) if hasattr(self.model, "foreign") else total
        if not hasattr(self.model, "parts"):
            return ClassAnswer(p, total, None, None, None, foreign)
        aleatoric, variance = self.model.parts(h)
        aleatoric = torch.minimum(aleatoric, total)
        pvalue = _pvalue(self.model, foreign)
        return ClassAnswer(p, total, aleatoric, total - aleatoric, variance, foreign, pvalue)

    def probabilities(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, "N T"]:
        """p(y | x) alone."""
        return _normalised(self.model.probabilities(self.model.f(self.scale(x))))

    def entropy(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """Entropy of the probabilities alone."""
        return entropy(self.probabilities(x))

    def uncertainty(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """The entropy, or the score that the method has instead."""
        return self.entropy(x) if self.model.by_entropy else self.ood_score(x)

    def ood_pvalue(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """Conformal p-value of the OOD score."""
        return self.model.pvalue(self.ood_score(x))

    def ood_score(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """How foreign each row is; the entropy, if the method measures no distance."""
        if not hasattr(self.model, "foreign"):
            return self.entropy(x)
        return self.model.foreign(*_look(self.model, self.scale(x)))


class ValuePredictor(nn.Module):
    """Mean, latent variance and noise of y, and the OOD score.

    Parameters
    ----------
    model
        What a method of values gives as its `predictor()`.
    scale, y_scale
        Of the inputs and of the targets.
    """

    def __init__(self, model: Any, scale: Scale, y_scale: Scale) -> None:
        super().__init__()
        self.scale, self.model, self.y_scale = Standard(scale), model, Standard(y_scale)

    def forward(self, x: Shaped[Tensor, "N ..."]) -> ValueAnswer:
        """Everything about each row."""
        h, *more = _look(self.model, self.scale(x))
        mean, var, noise = self.model.moments(h)
        foreign = self.model.foreign(h, *more) if hasattr(self.model, "foreign") else var.mean(-1)
        pvalue = _pvalue(self.model, foreign)
        return ValueAnswer(*self._in_units(mean, var, noise), foreign, pvalue)

    def moments(self, x: Shaped[Tensor, "N ..."]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, latent variance and noise variance alone, (N, T) each."""
        return self._in_units(*self.model.moments(self.model.f(self.scale(x))))

    def tails(self) -> tuple[Float[Tensor, " K"], Float[Tensor, " K"]]:
        """The noise as a mixture of normals: shares, and variances relative to its variance."""
        likelihood = getattr(self.model, "likelihood", None)
        if not isinstance(likelihood, Gaussian | StudentT):
            return torch.ones(1).double(), torch.ones(1).double()
        share, ratio = likelihood.mixture()
        return share, ratio / (share * ratio).sum()

    def levels(self) -> Levels | None:
        """How wide held-out rows need intervals to be; None if nobody asked them."""
        likelihood = getattr(self.model, "likelihood", None)
        if not isinstance(likelihood, StudentT) or not len(likelihood.level_z):
            return None
        levels, unit = likelihood.levels, self.y_scale.std.reshape(-1)
        return levels._replace(std=levels.std * unit[:, None], latent=levels.latent * unit)

    def ood_pvalue(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """Conformal p-value of the OOD score."""
        return self.model.pvalue(self.ood_score(x))

    def ood_score(self, x: Shaped[Tensor, "N ..."]) -> Float[Tensor, " N"]:
        """How foreign each row is; the latent variance, if the method measures no distance."""
        h, *more = _look(self.model, self.scale(x))
        if not hasattr(self.model, "foreign"):
            return self.model.moments(h)[1].mean(-1)
        return self.model.foreign(h, *more)

    def joint(self, x: Shaped[Tensor, "N ..."]) -> tuple[Tensor, Tensor]:
        """Mean (N, T) and covariance (N, N, T) of new observations of all rows, noise included."""
        h = torch.cat([self.model.f(self.scale(part)) for part in x.split(PEOPLE)])
        mean, cov, noise = self.model.joint(h)
        cov = cov + torch.diag_embed(noise.mT)
        return self.y_scale.inverse(mean), cov.permute(1, 2, 0) * self.y_scale.std.square()

    def _in_units(self, mean: Tensor, var: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        unit2 = self.y_scale.std.square()
        return self.y_scale.inverse(mean), var * unit2, noise * unit2


class EffectPredictor(nn.Module):
    """Effects of a treatment, their variance, both outcomes, and the OOD score.

    Parameters
    ----------
    model
        What a method of effects gives as its `predictor()`.
    scale, y_scale
        Of the covariates and of the outcomes.
    """

    def __init__(self, model: Any, scale: Scale, y_scale: Scale) -> None:
        super().__init__()
        self.scale, self.model, self.y_scale = Standard(scale), model, Standard(y_scale)

    def forward(self, x: Float[Tensor, "N D"]) -> EffectAnswer:
        """Everything about each person."""
        outcomes = self.outcomes(x)
        if not hasattr(self.model, "difference"):
            return EffectAnswer(outcomes[:, 1] - outcomes[:, 0], None, outcomes, None)
        foreign = None
        if hasattr(self.model, "overlap"):
            foreign = 1 - self.overlap(x).amin(1)
        return EffectAnswer(*self.posterior(x), outcomes, foreign)

    def outcomes(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """E[y | x, t] without and with treatment."""
        return self.y_scale.inverse(self.model.outcomes(self.scale(x)))

    def posterior(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Mean and variance of each effect, (N,) each."""
        return self._in_units(self.model.difference(self.scale(x)))

    def average(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Mean and variance of the average effect, (1,) each."""
        return self._in_units(self.model.average(self.scale(x)))

    def joint(self, x: Float[Tensor, "N D"]) -> tuple[Tensor, Tensor]:
        """Mean (N,) and covariance (N, N) of the effects."""
        mean, cov = self.model.joint_difference(self.scale(x))
        return mean[:, 0] * self.y_scale.std, cov[0] * self.y_scale.std.square()

    def overlap(self, x: Float[Tensor, "N D"]) -> Float[Tensor, "N 2"]:
        """Per arm, how much its training data informs each person, in [0, 1]."""
        return self.model.overlap(self.scale(x))

    def _in_units(self, found: Normal) -> tuple[Tensor, Tensor]:
        return found.mean[:, 0] * self.y_scale.std, found.var[:, 0] * self.y_scale.std.square()


Predictor = ClassPredictor | ValuePredictor | EffectPredictor


def _look(model: Any, x: Tensor) -> tuple[Any, ...]:
    """Features, and what else the model's OOD score asks for."""
    return model.look(x) if hasattr(model, "look") else (model.f(x),)


def _pvalue(model: Any, score: Tensor) -> Tensor | None:
    """Of the OOD score, if rows were held out for it."""
    known = getattr(model, "calibration", None)
    return None if known is None or not len(known) else model.pvalue(score)


def _normalised(p: Tensor) -> Tensor:
    return p / p.sum(-1, keepdim=True)
