"""DUE = features + inducing-point GP + likelihood: DUE(x, y) = −ELBO/N, predict(x) = p(y | x)."""

from copy import deepcopy
from typing import ClassVar, cast

import torch
from torch import Tensor, nn

from due.gp.collapsed import collapsed_bound, held_out_noise, set_optimal_q
from due.gp.frozen import FrozenClasses, FrozenGP, FrozenValues
from due.gp.inducing import InducingGP
from due.gp.initialise import INITIAL_POINTS, evaluate, initialise, warm_start
from due.gp.likelihoods import Gaussian, Likelihood, Normal, Softmax
from due.gp.reference import Reference, sharpest
from due.gp.shapes import Inputs, PerRow, Scalar, Weights
from due.lipschitz import fold
from due.methods.method import Method, Train
from due.networks import ScaledInputs
from due.rows.source import Source, Table

COLLAPSED_ROWS = 5000
BOUNDS = ("auto", "collapsed", "elbo")
FINISHES = ("noise", "q", "gp", "nothing")
POLISH = {"lr": 2e-2, "epochs": 60}  # of finish "gp"


class DeepGP(Method):
    """Abstract: a deep kernel GP, how it starts, trains, and learns from held-out rows."""

    kept: ClassVar[tuple[str, ...]] = ("reference", "sharpness", "calibration")  # by `finish`
    reference: Tensor  # features of training rows
    sharpness: Tensor  # (1,), of the kernel by which the OOD score measures distances
    calibration: Tensor  # sorted OOD scores of rows that had no part in training

    def __init__(
        self,
        f: nn.Module,
        gp: InducingGP,
        likelihood: Likelihood,
        n_data: int = 1,
        *,
        bound: str = "elbo",
        finish: str = "nothing",
        warm: bool = True,
    ) -> None:
        super().__init__()
        self.f, self.gp, self.likelihood, self.n_data = f, gp, likelihood, n_data
        self.bound, self.finishing, self.warm = bound, finish, warm
        for name in self.kept:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def start(self, source: Source, seed: int) -> None:
        """Algorithm 1 up to its loop: Z by k-means, length scale by mean distance, warm start."""
        self.n_data = len(source)
        for name in self.kept:
            setattr(self, name, self.reference.new_empty(0))
        x, y, *_ = source.some(INITIAL_POINTS, seed)
        h = evaluate(self.f, x)
        self.gp.place(*initialise(h, len(self.gp.Z), seed))
        if self.warm and isinstance(self.likelihood, Softmax):
            warm_start(self.gp, h, y.to(h.device))

    def forward(self, x: Inputs, y: Inputs, weights: Weights = None) -> Scalar:
        """−ELBO/N = KL(q(U) ‖ p(U)) / N − mean_i w_i E_q[log p(y_i | f_i)], or Titsias's bound."""
        h = self.f(x)
        if self.needs_all_rows:
            return -collapsed_bound(self.gp, h, y, self.sigma2, weights) / len(y)
        mean, var, kl = self.gp.with_kl(h)
        log_prob = self.likelihood.expected_log_prob(mean, var, y)
        fit = log_prob.mean() if weights is None else (weights * log_prob).mean()
        loss = kl / self.n_data - fit
        return loss + self.f.penalty() if isinstance(self.f, ScaledInputs) else loss

    def losses(self, x: Inputs, y: Inputs) -> PerRow:
        """−E_q[log p(y_i | f_i)] per row; its mean is the paper's "NLL"."""
        return -self.likelihood.expected_log_prob(*self.latent(x), y)

    @torch.no_grad()
    def settle(self, source: Source) -> None:
        """Under the collapsed bound, q(U) ← its optimum for the features in eval mode."""
        if self.needs_all_rows:
            x, y, *weights = (part.to(self.gp.Z.device) for part in source.whole())
            set_optimal_q(self.gp, self.f(x), y, self.sigma2, *weights)

    def latent(self, x: Inputs) -> Normal:
        """q(f(x)), row by row, without noise."""
        return Normal(*self.gp(self.f(x)))

    def predict(self, x: Inputs) -> Normal | Tensor:
        """Normal of a new observation (noise included), or class probabilities."""
        return self.likelihood.predictive(*self.latent(x))

    @property
    def needs_all_rows(self) -> bool:  # type: ignore[override]
        """Whether the bound is collapsed: q(U) is optimal in closed form at every step."""
        return is_collapsed(self.bound, self.n_data)

    @property
    def sigma2(self) -> Tensor:
        """Noise variance of a Gaussian likelihood."""
        if isinstance(self.likelihood, Softmax):
            raise TypeError("the collapsed bound needs a Gaussian likelihood; use the ELBO")
        return self.likelihood.sigma2

    @property
    def bound_name(self) -> str:
        """What is maximised: "collapsed" or "elbo"."""
        return "collapsed" if self.needs_all_rows else "elbo"

    @property
    def learns_from_all(self) -> bool:
        """Whether `finish` lets the GP learn from held-out rows too."""
        return self.needs_all_rows and self.finishing != "nothing"

    def _absorb(self, source: Source, held_out: Source | None, train: Train) -> None:
        """Once held-out rows have chosen the features, the GP on them learns from all rows."""
        if not self.learns_from_all:
            return
        known = Table(*source.whole())
        x, *rest = known.join(None if held_out is None else Table(*held_out.whole())).data
        device, n = self.gp.Z.device, len(known)
        with torch.no_grad():
            data = (self.f(x.to(device)), *(part.to(device) for part in rest))
        if self.finishing == "noise" and held_out is not None:
            (h0, y0, *w0), (h1, y1, *w1) = [part[:n] for part in data], [part[n:] for part in data]
            likelihood = cast(Gaussian, self.likelihood)
            shared = likelihood.noises < self.gp.T
            sigma2 = held_out_noise(self.gp, h0, y0, h1, y1, *w0, *w1, shared=shared)
            likelihood.set_sigma2(sigma2)
        head = DUE(nn.Identity(), self.gp, self.likelihood, len(x), bound="collapsed")
        if self.finishing == "gp":
            train(head, Table(*data), **POLISH)
        head.settle(Table(*data))

    @torch.no_grad()
    def _refer(self, source: Source, seed: int) -> None:
        """Keep the features of some training rows, from which the OOD score takes distances."""
        self.reference = evaluate(self.f, source.some(INITIAL_POINTS, seed)[0]).double()
        self.sharpness = self.reference.new_tensor([sharpest(self.reference, self.gp.kernel)])


class DUE(DeepGP):
    """A deep kernel GP on the features of any network, for classes or values.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`.
    gp
        `InducingGP` on those features; `start` places its inducing inputs.
    likelihood
        `Gaussian` or `Softmax`.
    n_data
        Number of rows N of the training set, whatever their weights; `start` sets it.
    bound
        "elbo" trains on batches; "collapsed" on all rows at once, with q(U) in closed form, for a
        Gaussian likelihood; "auto" takes the latter up to `COLLAPSED_ROWS` rows.
    finish
        What follows training under the collapsed bound, see `due.DUERegressor`.
    warm
        Start q(U) at the posterior of GP regression on the labels, instead of N(0, I).

    Examples
    --------
    >>> import torch
    >>> from due.gp import Gaussian, InducingGP
    >>> model = DUE(torch.nn.Linear(3, 2), InducingGP(torch.randn(5, 2)), Gaussian(), n_data=100)
    >>> loss = model(torch.randn(8, 3), torch.randn(8, 1))
    >>> model.predict(torch.randn(4, 3)).mean.shape
    torch.Size([4, 1])
    """

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        """Learn from held-out rows too, and keep the features of training rows."""
        self._absorb(source, held_out, train)
        self._refer(source, seed)

    @torch.no_grad()
    def calibrate(self, source: Source) -> None:
        """Keep the OOD scores of rows that had no part in training, for p-values."""
        frozen, device = self.predictor(), self.gp.Z.device
        scores = [frozen.foreign(frozen.f(x.to(device).double())) for x, *_ in source.chunks()]
        self.calibration = torch.cat(scores).sort().values

    def predictor(self) -> FrozenClasses | FrozenValues:
        """Norms folded, the GP's algebra done."""
        f = fold(self.f)
        kind = FrozenClasses if isinstance(self.likelihood, Softmax) else FrozenValues
        sharpness = float(self.sharpness) if len(self.sharpness) else 1.0
        known, kernel = self.reference, self.gp.kernel
        reference = Reference(known, kernel, sharpness=sharpness) if len(known) else None
        likelihood, calibration = deepcopy(self.likelihood), self.calibration.clone()
        frozen = kind(f, FrozenGP(self.gp), likelihood, reference, calibration)
        return frozen.requires_grad_(False).double().eval()


def is_collapsed(bound: str, n: int) -> bool:
    """Whether that bound has q(U) in closed form for n rows."""
    return bound == "collapsed" or (bound == "auto" and n <= COLLAPSED_ROWS)
