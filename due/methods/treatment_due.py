"""DUE for treatment effects: f on [x, t], and τ(x) = f([x, 1]) − f([x, 0]) in closed form."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp import FrozenEffects, FrozenGP, Reference, evaluate
from due.gp.mixed import MixedEffects
from due.lipschitz import fold
from due.methods.due import DeepGP
from due.methods.method import Train
from due.rows.source import Source, Table

PEOPLE = 1000  # of each arm, whose features are kept


class TreatmentDUE(DeepGP):
    """A deep kernel GP of the outcome on rows [x, t], with the features of each arm's people.

    Parameters
    ----------
    f
        Feature extractor of rows [x, t], such as `due.networks.AppendTreatment`.
    gp, likelihood, n_data, bound, finish
        As in `DUE`; the likelihood is `Gaussian`.
    """

    kept = (*DeepGP.kept, "arm0", "arm1")
    arm0: Tensor
    arm1: Tensor

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """Learn from held-out people too, and keep the features of each arm's people."""
        self._absorb(source, held_out, train)
        self._refer(source, seed)
        taught = Table(*source.whole())
        if held_out is not None and self.learns_from_all:
            taught = taught.join(Table(*held_out.whole()))
        generator, rows = torch.Generator().manual_seed(0), taught.data[0]
        f = fold(self.f).double()
        for arm in (0, 1):
            people = torch.nonzero(rows[:, -1] == arm)[:, 0]
            some = people[torch.randperm(len(people), generator=generator)[:PEOPLE]]
            setattr(self, f"arm{arm}", evaluate(f, rows[some].double()))

    @torch.no_grad()
    def predictor(self) -> FrozenEffects:
        """Norms folded, the GP's algebra done, one `Reference` per arm."""
        kernel = self.gp.kernel
        noise = float(self.sigma2[0] / kernel.outputscale[0])
        arms = [Reference(H, kernel, noise) for H in (self.arm0, self.arm1) if len(H)]
        frozen = FrozenEffects(fold(self.f), FrozenGP(self.gp), arms)
        return frozen.requires_grad_(False).double().eval()


class AveragedTreatmentDUE(nn.Module):
    """Several `TreatmentDUE` trained on the same people, which answer together by their weights."""

    members: Any  # of an nn.ModuleList, which knows no types
    weights: Tensor

    def __init__(self, members: list[TreatmentDUE], weights: Float[Tensor, " K"]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)
        self.register_buffer("weights", weights.detach().double().clone())

    @property
    def held_out_residuals(self) -> Tensor | None:
        """y − E[y] of held-out people, before any of them was learned from."""
        each = [one.held_out_residuals for one in self.members]
        if any(part is None for part in each):
            return None
        return torch.einsum("k,knt->nt", self.weights.cpu(), torch.stack(each))

    def predictor(self) -> MixedEffects:
        """Each member's, together."""
        return MixedEffects([one.predictor() for one in self.members], self.weights).eval()
