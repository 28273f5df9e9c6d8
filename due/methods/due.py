"""DUE = features + inducing-point GP + likelihood: DUE(x, y) = −ELBO/N, predict(x) = p(y | x)."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from functools import partial
from math import log, pi
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from due.gp.collapsed import collapsed_bound, condition, set_optimal_q
from due.gp.exact import Posterior, weighted_likelihood
from due.gp.frozen import FrozenClasses, FrozenGP, FrozenValues
from due.gp.inducing import InducingGP
from due.gp.initialise import (
    INITIAL_POINTS,
    evaluate,
    first_features,
    initialise,
    nearest_rows,
    spread_rows,
    warm_start,
)
from due.gp.kernels import CORRELATIONS
from due.gp.likelihoods import Additive, Likelihood, Normal, Softmax, StudentT
from due.gp.panel import Panel, has_stages, learn_directions, look
from due.gp.reference import Reference, sharpest
from due.gp.shapes import Features, Inputs, Noises, PerRow, Scalar, Weights
from due.gp.temperature import best_temperature
from due.lipschitz import fold
from due.methods.kernel import settle_kernel
from due.methods.method import Method, Train
from due.methods.noise import noise_of_all, noise_of_held_out, resist, tails_of_all
from due.methods.ready import ready
from due.networks import ScaledInputs
from due.rows.source import Source, Table

COLLAPSED_ROWS = 5000
EXACT_ROWS = 2000
BOUNDS = ("auto", "collapsed", "elbo", "exact")
INDUCING = ("free", "tied", "refreshed")
PLACEMENTS = ("kmeans", "greedy")
NOISE_KINDS = ("auto", "constant", "varying", "student")
KERNEL_ROWS = 2000  # rows that tell the kernel under the ELBO
NOISE_ROWS = 5000  # held-out rows that tell the noise there
FINISHES = ("noise", "q", "gp", "nothing")
NOISES = torch.logspace(-2, 1, 61)  # factors of the noise, to judge held-out rows by
VIEWED, BATCH = 10_000, 256  # training rows whose stages are learned, so many at once
TEMPERED = 1000  # rows that tell the temperature
POLISH = {"lr": 2e-2, "epochs": 60}  # of finish "gp"


class DeepGP(Method):
    """Abstract: a deep kernel GP, how it starts, trains, and learns from held-out rows."""

    kept: ClassVar[tuple[str, ...]] = (
        *("reference", "sharpness", "calibration", "x_Z", "age", "omega"),
        *("view_mean", "view_roots", "view_sizes", "view_known"),
    )
    kernels: tuple[str, ...] = ()  # of models pickled before there was a choice
    omega: Tensor  # (N, T), by what a Student-t divides the noise of each training row
    x_Z: Tensor  # rows whose features are the inducing points, unless these are free
    age: Tensor  # (1,), passes since the start; of "refreshed"
    reference: Tensor  # features of training rows
    sharpness: Tensor  # (1,), of the kernel by which the OOD score measures distances
    calibration: Tensor  # sorted OOD scores of rows that had no part in training
    view_mean: Tensor  # this and the next three are those of a `Panel`, if the network has stages
    view_roots: Tensor
    view_sizes: Tensor
    view_known: Tensor

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
        inducing: str = "free",
        placement: str = "kmeans",
        refresh: int = 10,
        noise: str = "constant",
        kernels: Sequence[str] = (),
    ) -> None:
        super().__init__()
        if gp.kernel.kind not in kernels and kernels:
            raise ValueError(f"kernels={kernels!r} lacks that of the GP, {gp.kernel.kind!r}")
        if not set(kernels) <= CORRELATIONS.keys():
            raise ValueError(f"kernels={kernels!r} are not all of {', '.join(CORRELATIONS)}")
        self.f, self.gp, self.likelihood, self.n_data = f, gp, likelihood, n_data
        self.bound, self.finishing, self.warm = bound, finish, warm
        self.inducing, self.placement, self.refresh = inducing, placement, refresh
        self.noise, self.kernels = noise, tuple(kernels)
        self.chosen: dict[str, Any] = {}  # by `finish`, for the history
        self.n_classes = likelihood.T if isinstance(likelihood, Softmax) else None
        self._rows: Tensor | None = None  # numbers of `x_Z` in the source
        self._given: Posterior | None = None  # of exact inference, between `settle` and `finish`
        self.held_out_loss: float | None = (
            None  # mean −log p(y) of held-out rows, at its best noise
        )
        if inducing != "free":
            gp.Z.requires_grad_(False)
        self.held_out_residuals: Tensor | None = None  # y − E[y] of those rows
        for name in self.kept:
            self.register_buffer(name, torch.empty(0, dtype=torch.float64))

    def start(self, source: Source, seed: int) -> None:
        """Algorithm 1 up to its loop: Z by k-means, length scale by mean distance, warm start."""
        self.n_data, self._given, self.held_out_loss = len(source), None, None
        if self.bound == "exact" and len(source) > EXACT_ROWS:
            raise ValueError(
                f"{len(source)} rows are too many for bound='exact', which takes up to "
                f"{EXACT_ROWS}: use bound='collapsed' with inducing='tied'"
            )
        for name in self.kept:
            setattr(self, name, self.reference.new_empty(0))
        if isinstance(self.likelihood, StudentT) and self.needs_all_rows:
            self.omega = self.reference.new_ones(len(source), self.gp.T)
        numbers = source.sample(INITIAL_POINTS, seed)
        x, y, *_ = source.take(numbers)
        h = first_features(self.f, x)
        Z, distance = initialise(h, len(self.gp.Z), seed)
        self.gp.place(Z, distance)
        if self.inducing != "free":
            self._settle_on(x, h, numbers)
        if self.warm and isinstance(self.likelihood, Softmax):
            warm_start(self.gp, h, y.to(h.device))

    def _settle_on(self, x: Tensor, h: Tensor, numbers: Tensor) -> None:
        """Choose the rows that are to be inducing points."""
        if self.placement == "greedy":
            chosen = spread_rows(h, self.gp.kernel, len(self.gp.Z))
        else:
            chosen = nearest_rows(h, self.gp.Z)
        self.x_Z, self._rows = x[chosen.to(x.device)].to(h.device), numbers[chosen].to(h.device)
        self.age = self.reference.new_zeros(1)
        with torch.no_grad():
            self.gp.Z.copy_(h[chosen.to(h.device)])

    def _features(self, x: Inputs) -> tuple[Tensor, Tensor | None]:
        """h = f(x), and Z = f(x_Z) of the same pass: one dropout mask, one batch norm."""
        if not len(self.x_Z):
            return self.f(x), None
        if self.inducing == "refreshed":
            self.age += 1
            if (int(self.age) - 1) % self.refresh:
                return self.f(x), None
        if self._has_all(x):
            h = self.f(x)
            Z = h[self._rows]
        else:
            Z, h = self.f(torch.cat([self.x_Z.to(x), x])).tensor_split([len(self.x_Z)])
        if self.inducing == "tied":
            return h, Z
        with torch.no_grad():
            self.gp.Z.copy_(Z)
        return h, None

    def _has_all(self, x: Inputs) -> bool:
        """Whether the inducing rows are where `start` saw them."""
        rows = self._rows
        return rows is not None and len(x) > int(rows.max()) and torch.equal(x[rows], self.x_Z)

    def forward(self, x: Inputs, y: Inputs, weights: Weights = None) -> Scalar:
        """−ELBO/N = KL(q(U) ‖ p(U)) / N − mean_i w_i E_q[log p(y_i | f_i)], or Titsias's bound.

        With exact inference −log p(y) / N.
        """
        loss = self._loss(x, y, weights)
        scaled = [part for part in self.f.modules() if isinstance(part, ScaledInputs)]
        return sum((part.penalty() for part in scaled), loss)

    def _loss(self, x: Tensor, y: Tensor, weights: Tensor | None) -> Tensor:
        if self.bound == "exact":
            h = self.f(x)
            return -weighted_likelihood(self.gp, h, y, self._training_noise(h), weights) / len(y)
        h, Z = self._features(x)
        if self.needs_all_rows:
            return -collapsed_bound(self.gp, h, y, self._training_noise(h), weights, Z) / len(y)
        mean, var, kl = self.gp.with_kl(h, Z)
        log_prob = self._log_prob(h, mean, var, y)
        fit = log_prob.mean() if weights is None else (weights * log_prob).mean()
        return kl / self.n_data - fit

    def losses(self, x: Inputs, y: Inputs) -> PerRow:
        """−E_q[log p(y_i | f_i)] per row; its mean is the paper's "NLL"."""
        h = self.f(x)
        return -self._log_prob(h, *self.posterior(h), y)

    def _log_prob(self, h: Tensor, mean: Tensor, var: Tensor, y: Tensor) -> Tensor:
        if isinstance(self.likelihood, Softmax):
            return self.likelihood.expected_log_prob(mean, var, y)
        return self.likelihood.expected_log_prob(mean, var, y, self.likelihood.noise(h))

    @torch.no_grad()
    def settle(self, source: Source) -> None:
        """For the features in eval mode: Z ← f(x_Z), and q(U) ← its optimum where that is known."""
        if len(self.x_Z) and self.bound != "exact":
            self.gp.Z.copy_(evaluate(self.f, self.x_Z))
        if self.needs_all_rows:
            x, y, *weights = (part.to(self.gp.Z.device) for part in source.whole())
            h = self.f(x)
            if self.bound == "exact":
                self._given = Posterior(self.gp, h, y, self._training_noise(h), *weights)
            else:
                set_optimal_q(self.gp, h, y, self._training_noise(h), *weights)
            if isinstance(self.likelihood, StudentT):
                noise = self.noise_at(h)
                self.omega = self.likelihood.precisions(*self.posterior(h), y, noise)

    def _training_noise(self, h: Tensor) -> Tensor:
        return self.noise_at(h) / self.omega if len(self.omega) else self.noise_at(h)

    def latent(self, x: Inputs) -> Normal:
        """q(f(x)), row by row, without noise."""
        return self.posterior(self.f(x))

    def posterior(self, h: Features) -> Normal:
        """q(f) at features, row by row, without noise."""
        return Normal(*(self._given or self.gp)(h))

    def predict(self, x: Inputs) -> Normal | Tensor:
        """Normal of a new observation (noise included), or class probabilities."""
        h = self.f(x)
        if isinstance(self.likelihood, Softmax):
            return self.likelihood.predictive(*self.posterior(h))
        return self.likelihood.predictive(*self.posterior(h), self.likelihood.noise(h))

    @torch.no_grad()
    def _judge(self, held_out: Source | None) -> None:
        """Note how well held-out rows are predicted, before any of them is learned from."""
        if held_out is None:
            return
        total, weight, residuals = torch.zeros(1), 0.0, []
        for part in held_out.chunks():
            x, y, *weights = (piece.to(self.gp.Z.device) for piece in part)
            w = weights[0] if weights else torch.ones(len(y), device=y.device)
            losses = self._surprises(x, y)
            total, weight = total + (losses @ w.to(losses)).cpu(), weight + float(w.sum())
            if not isinstance(self.likelihood, Softmax):
                residuals.append((y - self.latent(x).mean).double().cpu())
        self.held_out_loss = float(total.min()) / weight
        self.held_out_residuals = torch.cat(residuals) if residuals else None

    def _surprises(self, x: Tensor, y: Tensor) -> Tensor:
        """−log p(y_i | x_i), (G, N): of classes, or of values, the noise times each of `NOISES`.

        The noise at the chosen epoch says little: it is still on its way then, and `finish` learns
        it again.
        """
        predicted = self.predict(x)
        if not isinstance(predicted, Normal):
            return -predicted.gather(-1, y[:, None])[:, 0].log()[None]
        mean, var = self.latent(x)
        noise = (predicted.var - var).clamp_min(0)
        total = var + NOISES.to(var)[:, None, None] * noise  # (G, N, T)
        return 0.5 * (log(2 * pi) + total.log() + (y - mean).square() / total).sum(-1)

    @property
    def needs_all_rows(self) -> bool:  # type: ignore[override]
        """Whether q(U) is optimal in closed form at every step."""
        return takes_all_rows(self.bound, self.n_data)

    @property
    def sigma2(self) -> Tensor:
        """Noise variance of a Gaussian likelihood; its level, if it depends on x."""
        return self.additive.sigma2

    def noise_at(self, h: Features) -> Noises:
        """Noise variance of a Gaussian likelihood at these features."""
        return self.additive.noise(h)

    @property
    def additive(self) -> Additive:
        """The likelihood, if it is of values."""
        if isinstance(self.likelihood, Softmax):
            raise TypeError("the collapsed bound needs a Gaussian likelihood; use the ELBO")
        return self.likelihood

    @property
    def bound_name(self) -> str:
        """What is maximised: "collapsed", "elbo" or "exact"."""
        if self.bound == "exact":
            return "exact"
        return "collapsed" if self.needs_all_rows else "elbo"

    @property
    def learns_from_all(self) -> bool:
        """Whether `finish` lets the GP learn from held-out rows too."""
        return self.needs_all_rows and self.finishing != "nothing"

    def _absorb(self, source: Source, held_out: Source | None, train: Train) -> None:
        """Once held-out rows have chosen the features, the GP on them learns from all rows."""
        self._judge(held_out)
        if not (self.learns_from_all or self.bound == "exact"):
            if held_out is not None and self.finishing == "noise":
                self._absorb_by_parts(source, held_out)
            return
        known = Table(*source.whole())
        others = held_out if self.learns_from_all else None
        x, *rest = known.join(None if others is None else Table(*others.whole())).data
        device, n = self.gp.Z.device, len(known)
        with torch.no_grad():
            data = (self.f(x.to(device)), *(part.to(device) for part in rest))
        if self.bound == "exact":
            self._given = None
            self.gp.grow(data[0][:n])
        heavy = isinstance(self.likelihood, StudentT)  # as it was asked for
        learn_noise = tails_of_all if heavy else noise_of_all
        if others is not None:
            known_and_new = [part[:n] for part in data], [part[n:] for part in data]
            if self.finishing == "noise" and not heavy:
                settle_kernel(self, *known_and_new)
            learn_noise(self, *known_and_new)
        if self.finishing == "gp" and not heavy:
            bound = "exact" if self.bound == "exact" else "collapsed"
            head = DUE(nn.Identity(), self.gp, self.likelihood, len(x), bound=bound)
            train(head, Table(*data), **POLISH)
        if self.bound == "exact":
            self.gp.grow(data[0])  # every row is an inducing point
        h, y, *weights = data
        if heavy:
            resist(self, h, y, *weights)
        else:  # also if tails were found: to resist skewed noise would move the mean
            set_optimal_q(self.gp, h, y, self.additive.variance(h), *weights)

    def _absorb_by_parts(self, source: Source, held_out: Source) -> None:
        """What follows the ELBO: kernel, q(U) and noise, as for few rows, but part by part."""
        new = self._on_features(held_out.some(NOISE_ROWS, 0))
        heavy = isinstance(self.likelihood, StudentT)
        if not heavy:
            settle_kernel(self, self._on_features(source.some(KERNEL_ROWS, 0)), new)
            self._condition(source)
        noise_of_held_out(self, new, partial(self._condition, source))
        if not heavy:
            self._condition(source)  # alone: a warm start validates on the held-out rows again

    def _on_features(self, data: Sequence[Tensor]) -> list[Tensor]:
        """h, y and weights of rows, in eval mode."""
        h = evaluate(self.f, data[0])
        return [h, *(part.to(h.device) for part in data[1:])]

    def _condition(self, source: Source) -> None:
        """q(U) ← its optimum given all rows of the source, part by part."""

        def parts() -> Iterator[tuple[Tensor, Tensor, Tensor, Weights]]:
            for data in source.chunks():
                x, y, *weights = (part.to(self.gp.Z.device) for part in data)
                h = self.f(x)
                yield h, y, self.additive.variance(h), weights[0] if weights else None

        condition(self.gp, parts())

    def go_on(self) -> None:
        """Forget what the end of an earlier fit learned of the noise, and which kernel it chose."""
        self.chosen, self.held_out_loss = {}, None
        if self.kernels:
            self.gp.kernel.kind = self.kernels[0]
        if isinstance(self.likelihood, Softmax) or self.finishing == "nothing":
            return
        if isinstance(self.likelihood, StudentT) and self.noise == "auto":
            self.likelihood = self.likelihood.without_tails()
        self.likelihood.shape = None

    @torch.no_grad()
    def _refer(self, source: Source, seed: int) -> None:
        """Keep the features of some training rows, from which the OOD score takes distances."""
        self.reference = evaluate(self.f, source.some(INITIAL_POINTS, seed)[0]).double()
        self.sharpness = self.reference.new_tensor([sharpest(self.reference, self.gp.kernel)])
        if has_stages(self.f):
            parts = [look(self.f, x)[1] for x in self._some(source, VIEWED, seed)]
            stages = [torch.cat(part) for part in zip(*parts, strict=True)]
            self.view_mean, self.view_roots = learn_directions(stages)
            self.view_sizes = self.view_mean.new_tensor([u.shape[1] for u in stages])

    def _some(self, source: Source, p: int, seed: int) -> Iterator[Tensor]:
        """p random rows in small batches, without the transform, on the device of the GP."""
        for numbers in source.sample(p, seed).split(BATCH):
            yield source.take(numbers)[0].to(self.gp.Z.device)


class DUE(DeepGP):
    """A deep kernel GP on the features of any network, for classes or values.

    Parameters
    ----------
    f
        Feature extractor, x → (N, J); bounded beforehand by `due.lipschitz.constrain`.
    gp
        `InducingGP` on those features; `start` places its inducing inputs.
    likelihood
        `Gaussian`, `StudentT` or `Softmax`.
    n_data
        Number of rows N of the training set, whatever their weights; `start` sets it.
    bound
        "elbo" trains on batches; "collapsed" on all rows at once, with q(U) in closed form, for a
        Gaussian likelihood; "auto" takes the latter up to `COLLAPSED_ROWS` rows. "exact" has no
        inducing points, maximises log p(y) itself and takes up to `EXACT_ROWS` rows; once it is
        trained, every row is an inducing point.
    finish
        What follows training, see `due.DUERegressor`.
    warm
        Start q(U) at the posterior of GP regression on the labels, instead of N(0, I).
    inducing
        "free" learns Z in feature space, as the paper does. "tied" keeps Z = f(x_Z) for training
        rows x_Z at every step, gradient included. "refreshed" does so every `refresh` passes,
        without the gradient. Z then stays among the features of the data.
    placement
        Which rows are x_Z: those nearest to the k-means centres ("kmeans"), or one after another
        the row of the largest conditional variance ("greedy").
    noise
        Whether `finish` learns how the noise of a Gaussian likelihood depends on x, see
        `due.DUERegressor`.
    kernels
        Kinds, of which the first trains, and `finish` takes the one under which training rows are
        most probable, see `due.DUERegressor`; none are compared if empty.

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
    def temper(self, source: Source) -> float:
        """Divide f by the temperature that suits rows which had no part in training; return it.

        Of the two halves that `calibrate` makes of them if there are several views, only the first
        has a say, so that the p-values from the other stay exact.
        """
        likelihood = self.likelihood
        if not isinstance(likelihood, Softmax):
            raise TypeError("only class probabilities have a temperature")
        n = len(source)
        numbers = source.sample(n, 0)[: n // 2 if len(self.view_mean) else n][:TEMPERED]
        x, y, *weights = (part.to(self.gp.Z.device) for part in source.take(numbers))
        mean, var = self.posterior(evaluate(self.f, x))
        temperature = best_temperature(likelihood, mean, var, y, *weights)
        self.gp.temper(temperature)
        return temperature

    @torch.no_grad()
    def calibrate(self, source: Source, predictor: FrozenClasses | FrozenValues) -> None:
        """Keep the OOD scores of rows that had no part in training, for p-values.

        `predictor` is that of this model; it then knows them too.

        If there are several views, half of the rows rank these and the other half make p-values:
        the combined score is then a fixed function for the latter, and their p-values are exact.
        """
        n = len(source)
        rows = (x.double() for x in self._some(source, n, seed=0))
        if len(self.view_mean):
            panel = self._panel()
            seen = (look(predictor.f, x) for x in rows)
            views = torch.cat([panel.views(predictor.energy(h), stages) for h, stages in seen])
            self.view_known = views[: n // 2].sort(0).values
            predictor.panel = self._panel().double()
            scores = predictor.panel(views[n // 2 :])
        else:
            scores = torch.cat([predictor.foreign(*predictor.look(x)) for x in rows])
        self.calibration = scores.sort().values
        predictor.calibration = self.calibration.double()

    def _panel(self) -> Panel:
        sizes = [int(size) for size in self.view_sizes]
        return Panel(self.view_mean, self.view_roots, sizes, self.view_known)

    def predictor(self) -> FrozenClasses | FrozenValues:
        """Norms folded, the GP's algebra done."""
        f = fold(self.f)
        kind = FrozenClasses if isinstance(self.likelihood, Softmax) else FrozenValues
        sharpness = float(self.sharpness) if len(self.sharpness) else 1.0
        known, kernel = self.reference, self.gp.kernel
        reference = Reference(known, kernel, sharpness=sharpness) if len(known) else None
        likelihood, calibration = deepcopy(self.likelihood), self.calibration.clone()
        panel = self._panel() if len(self.view_known) else None
        frozen = kind(f, FrozenGP(self.gp), likelihood, reference, calibration, panel)
        return ready(frozen)


def takes_all_rows(bound: str, n: int) -> bool:
    """Whether that bound has q(U) in closed form for n rows."""
    return bound in ("collapsed", "exact") or (bound == "auto" and n <= COLLAPSED_ROWS)
