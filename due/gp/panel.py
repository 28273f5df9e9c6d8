"""Is a row foreign? Several views of it, each ranked among rows held out, and made one score.

A view is a number that grows as a row looks more foreign. One is the energy −log Σ_t exp(f_t) of
the latent means. The others are one per stage of the network: how far the direction u = v / ‖v‖ of
what the stage gives is from those of training rows, (u − ū)ᵀ Σ⁻¹ (u − ū). Directions, because
foreign images tend to have small features, and small features are near the middle of all others.

p_k is the share of held-out rows that look at least as foreign by view k; the score grows with
Fisher's −Σ_k log p_k. No foreign row has a part in any of it.
"""

from collections.abc import Sequence
from math import log
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import normalize

from due.gp.shapes import Features, PerRow

RIDGE = 0.1  # of the mean variance, added to each
TAIL = 0.1  # share of the ranked rows from which the slope of the tail is taken
Directions = Sequence[Float[Tensor, "N _"]]  # of each stage


def has_stages(f: nn.Module) -> bool:
    """Whether the network shows what it has on the way to its features."""
    return hasattr(f, "stages")


def look(f: Any, x: Tensor) -> tuple[Features, list[Tensor]]:
    """h, and the direction of each stage: of its channels' means and deviations, at last of h."""
    *maps, h = f.stages(x)
    return h, [normalize(_channels(stage), dim=1) for stage in maps] + [normalize(h, dim=1)]


def learn_directions(stages: Directions) -> tuple[Tensor, Tensor]:
    """ū of all stages, (Σ_k D_k,), and A with A Aᵀ = Σ⁻¹ of each, flat, (Σ_k D_k²,)."""
    means, roots = [], []
    for u in stages:
        gap = u.double() - u.double().mean(0)
        cov = gap.mT @ gap / len(gap)
        spread = cov.diagonal().mean().clamp_min(torch.finfo(cov.dtype).tiny)
        L = torch.linalg.cholesky(cov / spread + RIDGE * torch.eye(len(cov)).to(cov))
        eye = torch.eye(len(cov)).to(cov)
        inverse = torch.linalg.solve_triangular(L, eye, upper=False) / spread.sqrt()
        means.append(u.double().mean(0))
        roots.append(inverse.mT.flatten())
    return torch.cat(means), torch.cat(roots)


class Panel(nn.Module):
    """The views, and their ranks among held-out rows.

    Parameters
    ----------
    mean, roots
        Of `learn_directions`.
    sizes
        D_k of each stage.
    known
        Views of held-out rows, sorted view by view. Empty until they are `ranked`.
    """

    mean: Tensor
    roots: Tensor
    known: Tensor

    def __init__(
        self,
        mean: Float[Tensor, " D"],
        roots: Float[Tensor, " D2"],
        sizes: Sequence[int],
        known: Tensor,  # (A, K)
    ) -> None:
        super().__init__()
        if (len(mean), len(roots)) != (sum(sizes), sum(D * D for D in sizes)):
            raise ValueError(f"directions of {len(mean)} entries do not fit stages of {sizes}")
        self.sizes = list(sizes)
        self.register_buffer("mean", mean.clone())
        self.register_buffer("roots", roots.clone())
        self.register_buffer("known", known.clone())

    def views(self, energy: PerRow | None, stages: Directions) -> Float[Tensor, "N K"]:
        """One column per view."""
        means = self.mean.split(self.sizes)
        roots = self.roots.split([D * D for D in self.sizes])
        white = [
            (u - m) @ A.view(len(m), len(m)) for u, m, A in zip(stages, means, roots, strict=True)
        ]
        found = [w.square().sum(1) for w in white]
        return torch.stack(found if energy is None else [energy, *found], 1)

    def forward(self, views: Float[Tensor, "N K"]) -> PerRow:
        """F / (F + K) for F = −Σ_k log p_k, in [0, 1): ½ where p is 1/e in each of the K views."""
        F = self.surprise(views).sum(1)
        return F / (F + views.shape[1])

    def surprise(self, views: Float[Tensor, "N K"]) -> Float[Tensor, "N K"]:
        """−log p_k, p_k = (1 + held-out rows not below) / (1 + A); beyond them all it goes on.

        It goes on as if the tail were exponential, so that far and farther rows differ.
        """
        A = len(self.known)
        below = torch.searchsorted(self.known.mT.contiguous(), views.mT.contiguous()).mT
        inside = log(1 + A) - (1 + A - below).to(views.dtype).log()
        edge = self.known[A - 1 - int(TAIL * A)]
        slope = (self.known - edge).clamp_min(0).sum(0) / max(1, int(TAIL * A))
        last = self.known[-1]
        beyond = (views - last) / slope.clamp_min(torch.finfo(slope.dtype).tiny)
        return inside + beyond.clamp(0, 1e100)


def _channels(stage: Float[Tensor, "N C H W"]) -> Float[Tensor, "N 2*C"]:
    """Mean and standard deviation of each channel over its pixels."""
    var, mean = torch.var_mean(stage.flatten(2), -1, correction=0)
    return torch.cat([mean, var.sqrt()], 1)
