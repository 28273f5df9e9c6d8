"""SNGP (Liu et al., 2020): f = β φ(h) + b on S random features, β ~ N(0, I / ridge), by Laplace.

    φ(h) = √(2/S) cos(W h / l + phase),   E[φ(h)ᵀφ(h')] = exp(−‖h − h'‖² / 2l²)
    P = ridge · I + Σ_i a_i φ_i φ_iᵀ,   Var[f(h)] = φ(h)ᵀ P⁻¹ φ(h)

where a_i is the curvature of the loss of row i in f at the learned β. φ has a finite length, so
unlike a GP's, Var[f] goes to 0 everywhere as rows are added.
"""

from abc import abstractmethod
from collections.abc import Callable
from math import pi, sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from due.gp import Gaussian, Normal
from due.gp.initialise import INITIAL_POINTS, first_features
from due.gp.shapes import Features, Inputs, Labels, PerRow, Scalar, Values, Weights
from due.gp.softmax import mean_field
from due.methods.method import Folded, Train, weighted_mean
from due.rows.source import Source


class SNGP(Folded):
    """Abstract: trained without covariance, which one clean pass over the rows then sets."""

    def __init__(self, f: nn.Module, gp: "RandomFeatureGP", n_data: int = 1) -> None:
        super().__init__()
        self.f, self.gp, self.n_data = f, gp, n_data

    @abstractmethod
    def curvature_of(self, mean: Values) -> Float[Tensor, "N K"]:
        """a of each row, the curvature of its loss at the learned β."""

    def start(self, source: Source, seed: int) -> None:
        """l ← mean distance between features of 1,000 rows."""
        self.n_data = len(source)
        x, *_ = source.some(INITIAL_POINTS, seed)
        if len(x) > 1:
            self.gp.set_lengthscale(first_features(self.f, x))

    def forward(self, x: Inputs, y: Inputs, weights: Weights = None) -> Scalar:
        """−log p(β | data)/N = ridge ‖β‖² / 2N + mean_i w_i loss_i."""
        return weighted_mean(self.losses(x, y), weights) + self.gp.penalty() / self.n_data

    def settle(self, source: Source) -> None:
        """The covariance has no part in a validation."""

    @torch.no_grad()
    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """P = ridge · I + Σ_i w_i a_i φ_i φ_iᵀ in float64, over the training rows in eval mode."""
        self.eval()
        gp, device = self.gp, self.gp.W.device
        P = gp.ridge * torch.eye(gp.S, dtype=torch.float64, device=device).repeat(gp.K, 1, 1)
        for x, _, *w in source.chunks():
            phi = gp.features(self.f(x.to(device)))
            a = self.curvature_of(gp.output(phi).double())  # (n, K)
            a = a * w[0].to(device).double()[:, None] if w else a
            phi = phi.double()
            for P_k, a_k in zip(P, a.mT, strict=True):
                P_k.addmm_((a_k[:, None] * phi).mT, phi)
        gp.set_precision(P)

    def latent(self, x: Inputs) -> Normal:
        """Mean and variance of f(x), without noise."""
        return self.gp(self.f(x))


class SNGPSoftmax(SNGP):
    """SNGP for classes.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`.
    gp
        `RandomFeatureGP` with T outputs, and K = T if `curvature` is "per_class".
    n_data
        Number of rows N of the training set; `start` sets it.
    curvature
        a of the Laplace approximation, as in `due.baselines.SNGPClassifier`.
    """

    by_entropy = True

    def __init__(
        self, f: nn.Module, gp: "RandomFeatureGP", n_data: int = 1, curvature: str = "one"
    ) -> None:
        super().__init__(f, gp, n_data)
        if curvature not in CURVATURES:
            raise ValueError(f"curvature={curvature!r} is not one of {', '.join(CURVATURES)}")
        K = gp.T if curvature == "per_class" else 1
        if K != gp.K:
            raise ValueError(f"curvature={curvature!r} needs a RandomFeatureGP with K={K}")
        self.curvature, self.n_classes = curvature, gp.T

    def losses(self, x: Inputs, y: Labels) -> PerRow:
        """−log softmax(f(x_i))_{y_i} at the mean."""
        return cross_entropy(self.gp.mean(self.f(x)), y, reduction="none")

    def curvature_of(self, mean: Values) -> Float[Tensor, "N K"]:
        """a, by the name of `curvature`."""
        return CURVATURES[self.curvature](torch.softmax(mean, -1))

    def predict(self, x: Inputs) -> Values:
        """Mean-field probabilities softmax(mean / √(1 + π/8 · var))."""
        return self.probabilities(self.f(x))

    def probabilities(self, h: Features) -> Values:
        """Mean-field probabilities from features."""
        return mean_field(*self.gp(h))


class SNGPGaussian(SNGP):
    """SNGP for regression.

    Parameters
    ----------
    f, gp, n_data
        As in `SNGPSoftmax`; K = 1 because the outputs share their noise.
    sigma2
        Noise variance σ²; 1, fixed, makes the loss half the squared error and P = ridge · I + Σφφᵀ,
        as in Figure 1 of the paper.
    learn_sigma2
        Learn σ² with all the rest, from this value on.
    """

    def __init__(
        self,
        f: nn.Module,
        gp: "RandomFeatureGP",
        n_data: int = 1,
        sigma2: float = 1.0,
        learn_sigma2: bool = False,
    ) -> None:
        super().__init__(f, gp, n_data)
        if gp.K != 1:
            raise ValueError("regression needs a RandomFeatureGP with K=1")
        self.likelihood = Gaussian(1, sigma2).requires_grad_(learn_sigma2)

    def losses(self, x: Inputs, y: Values) -> PerRow:
        """½ Σ_t ((y − f)² / σ² + log 2πσ²) at the mean."""
        mean = self.gp.mean(self.f(x))
        return -self.likelihood.expected_log_prob(mean, torch.zeros_like(mean), y)

    def curvature_of(self, mean: Values) -> Float[Tensor, "N K"]:
        """1 / σ²."""
        return (1 / self.likelihood.sigma2).expand(len(mean), 1)

    def predict(self, x: Inputs) -> Normal:
        """N(mean, var + σ²): a new observation."""
        return self.likelihood.predictive(*self.latent(x))

    def moments(self, h: Features) -> tuple[Tensor, Tensor, Tensor]:
        """Mean and variance of the function, and of the noise, each (N, T)."""
        mean, var = self.gp(h)
        return mean, var, self.likelihood.sigma2.to(var.dtype).expand_as(var)


class RandomFeatureGP(nn.Module):
    """f_t(h) = β_tᵀ φ(h) + b_t; its covariance is the prior's until `set_precision`.

    Parameters
    ----------
    J, T
        Features and outputs.
    S
        Random features.
    lengthscale
        l; not learned, because it only rescales h. `set_lengthscale` takes it from data.
    ridge
        Prior precision of β.
    K
        Covariances: 1 for all outputs, or T.
    layer_norm
        Put h through a learned LayerNorm first.
    projection
        Project h to so many dimensions before all else, by a fixed Gaussian matrix.
    seed
        Of W, the phases and the projection.
    """

    W: Tensor
    phase: Tensor
    lengthscale: Tensor
    projection: Tensor | None
    root: Tensor

    def __init__(
        self,
        J: int,
        T: int = 1,
        S: int = 1024,
        lengthscale: float = 1.0,
        ridge: float = 1.0,
        K: int = 1,
        layer_norm: bool = True,
        projection: int | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        if K not in (1, T):
            raise ValueError(f"K={K} is neither 1 nor the number of outputs, {T}")
        generator = torch.Generator().manual_seed(seed)
        self.T, self.S, self.K, self.ridge = T, S, K, ridge
        self.register_buffer("projection", None)
        if projection is not None:
            gauss = torch.randn(projection, J, generator=generator, dtype=torch.float64)
            self.projection, J = (gauss / sqrt(projection)).float(), projection
        self.norm = nn.LayerNorm(J) if layer_norm else nn.Identity()
        self.register_buffer("W", orthogonal_rows(S, J, generator).float())
        phase = 2 * pi * torch.rand(S, generator=generator, dtype=torch.float64)
        self.register_buffer("phase", phase.float())
        self.register_buffer("lengthscale", torch.tensor(float(lengthscale)))
        self.output = nn.Linear(S, T)
        prior = torch.eye(S, dtype=torch.float64) / sqrt(ridge)
        self.register_buffer("root", prior.repeat(K, 1, 1))  # L⁻¹, P = L Lᵀ

    def forward(self, h: Features) -> Normal:
        """Mean and variance φᵀ P⁻¹ φ = ‖L⁻¹ φ‖² of each f_t(h_n)."""
        phi = self.features(h)
        white = phi.to(self.root.dtype) @ self.root.mT  # (K, N, S)
        var = white.square().sum(-1).mT.to(phi.dtype)  # (N, K)
        return Normal(self.output(phi), var.expand(-1, self.T))

    def mean(self, h: Features) -> Values:
        """β φ(h) + b."""
        return self.output(self.features(h))

    def features(self, h: Features) -> Float[Tensor, "N S"]:
        """φ(h) = √(2/S) cos(W h / l + phase) of h as it comes out of `inputs`."""
        angle = self.inputs(h) / self.lengthscale @ self.W.mT + self.phase
        return sqrt(2 / self.S) * torch.cos(angle)

    def inputs(self, h: Features) -> Float[Tensor, "N I"]:
        """h, projected and normalised if so asked: where distances are taken."""
        return self.norm(h if self.projection is None else h @ self.projection.mT)

    def penalty(self) -> Scalar:
        """ridge ‖β‖² / 2 = −log p(β) + const; b has no prior."""
        return self.ridge / 2 * self.output.weight.square().sum()

    @torch.no_grad()
    def set_lengthscale(self, h: Features) -> None:
        """l ← mean distance between these features, as DUE starts (Algorithm 1)."""
        spread = torch.pdist(self.inputs(h)).mean()
        self.lengthscale.fill_(float(spread) if spread > 0 else 1.0)

    @torch.no_grad()
    def set_precision(self, P: Float[Tensor, "K S S"]) -> None:
        """Store L⁻¹ of the precisions P = L Lᵀ, in float64."""
        L = torch.linalg.cholesky(P.double())
        eye = torch.eye(self.S, dtype=L.dtype, device=L.device)
        root = torch.linalg.solve_triangular(L, eye.expand_as(L), upper=False)
        self.root = root.contiguous()  # as it comes back from a file: products round by layout

    @property
    def covariance(self) -> Float[Tensor, "K S S"]:
        """P⁻¹, the covariance of β."""
        return self.root.mT @ self.root


def orthogonal_rows(S: int, J: int, generator: torch.Generator) -> Float[Tensor, "S J"]:
    """Rows as those of a Gaussian matrix, but orthogonal within each block of J (Yu et al., 2016).

    Directions are uniform on the sphere; norms are drawn as χ_J, independently.
    """
    blocks = []
    for start in range(0, S, J):
        gauss = torch.randn(J, J, generator=generator, dtype=torch.float64)
        Q, R = torch.linalg.qr(gauss)
        blocks.append((Q * R.diagonal().sign())[: S - start])  # the signs make Q uniform
    norms = torch.randn(S, J, generator=generator, dtype=torch.float64).norm(dim=1)
    return norms[:, None] * torch.cat(blocks)


CURVATURES: dict[str, Callable[[Tensor], Tensor]] = {  # a, from p = softmax(f)
    "largest": lambda p: p.amax(-1, keepdim=True) * (1 - p.amax(-1, keepdim=True)),
    "per_class": lambda p: p * (1 - p),
    "one": lambda p: torch.ones_like(p[:, :1]),
}
