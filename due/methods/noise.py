"""The noise of a deep GP, once its features are chosen: its level, its shape over x, its tails."""

from collections.abc import Callable, Sequence
from math import log, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from due.gp.collapsed import held_out_noise, leave_one_out, set_optimal_q
from due.gp.levels import ENDS, fit_levels, outside, z_beyond
from due.gp.likelihoods import StudentT, student_mixture
from due.gp.noise import (
    Choice,
    Residuals,
    best_level,
    choose_shape,
    fit_shape,
    mean_and_error,
    residuals,
)

NUS = (3.0, 4.0, 6.0, 10.0, 30.0)
MILD = (5.0, 10.0, 30.0)  # of `auto`: the standard deviation still tells the interval
ROUNDS = 5  # of weights and q(U) in turn
SMALLEST = 1e-10
FEWEST = 5  # held-out rows that fit a shape of the noise, and as many that judge it
MOST = 1000  # rows by which tails are chosen
NINETY = 1.645  # z of 90 %
Data = list[Tensor]  # features, y and perhaps weights


@torch.no_grad()
def noise_of_all(model: Any, known: Data, new: Data) -> None:
    """From known rows, each left out, and new ones, with q(U) in closed form."""
    likelihood = model.additive
    if model.finishing == "noise":
        likelihood.set_sigma2(level_of(model, known, new))
    if model.noise != "constant":
        _learn_shape(model, known, new)
    if model.finishing == "noise":  # judged before the function learns from the new rows
        rows = left_out(model, known, new)[1]
        auto = model.noise == "auto"
        density = _learn_tails(model, rows) if auto else _log_normal(model, rows)
        model.held_out_loss = -mean_and_error(density, rows.weight)[0]


def _log_normal(model: Any, rows: Residuals) -> Tensor:
    """log p of the rows under normal noise."""
    var = rows.var + model.noise_at(rows.h)
    return -0.5 * (log(2 * pi) + var.log() + rows.square / var).sum(-1)


def _learn_tails(model: Any, rows: Residuals) -> Tensor:
    """A Student-t in place of normal noise, of the same shape; log p of the rows under it."""
    likelihood = model.additive
    found = _tails(model, rows, MILD)
    model.likelihood = likelihood.with_tails(found.nu, found.sigma2)
    model.chosen["noise"]["nu"] = found.nu
    _learn_levels(model, rows)
    return found.log_density


def _learn_levels(model: Any, rows: Residuals) -> None:
    """How wide intervals must be so that they cover as often as they say."""
    likelihood, noise = model.additive, model.noise_at(rows.h)
    share, ratio = likelihood.mixture()
    spread = (rows.var[..., None] + noise.expand_as(rows.var)[..., None] * ratio).sqrt()
    beyond = (share * outside(rows.square.sqrt()[..., None] / spread)).sum(-1)
    std = (rows.var + likelihood.variance(rows.h)).sqrt()
    levels = fit_levels(z_beyond(beyond), std, rows.var.sqrt(), rows.weight)
    if levels is not None:
        likelihood.levels = levels
        at = int(torch.searchsorted(levels.nominal, NINETY))
        model.chosen["noise"]["widths_90"] = (
            levels.z[:, :: len(ENDS), at] / levels.nominal[at]
        ).tolist()


def _tails(model: Any, rows: Residuals, nus: Sequence[float]) -> "Tails":
    likelihood = model.additive
    return best_tails(rows, likelihood.noises == model.gp.T, _log_shape(likelihood, rows), nus)


def _log_shape(likelihood: Any, rows: Residuals) -> Tensor:
    if likelihood.shape is None:
        return torch.zeros_like(rows.square)
    shape: Tensor = likelihood.shape(rows.h).log()
    return shape


def _learn_shape(model: Any, known: Data, new: Data) -> None:
    likelihood = model.additive
    choice = choose_shape(*left_out(model, known, new), needed=model.noise == "varying")
    likelihood.shape, model.chosen["noise"] = choice.shape, _told(choice)
    if choice.shape is not None:  # with rows weighted by it, other residuals are left
        likelihood.set_sigma2(level_of(model, known, new))
        known_rows, _ = left_out(model, known, new)
        likelihood.shape = fit_shape(known_rows, choice.strength, choice.length)
        likelihood.set_sigma2(level_of(model, known, new))


@torch.no_grad()
def noise_of_held_out(model: Any, new: Data, condition: Callable[[], None]) -> None:
    """From rows that were held out: a half of them fits the shape, the other half judges it.

    `condition` gives q(U) anew, with rows weighted by the noise that was found.
    """
    likelihood, rows = model.additive, _residuals_of(model, new)
    if isinstance(likelihood, StudentT):
        _set_tails(model, rows)
        return
    g = torch.zeros_like(rows.square)
    if model.noise != "constant" and len(rows.h) < 2 * FEWEST:
        model.chosen["noise"] = {"kind": "constant"}
    elif model.noise != "constant":
        first = torch.arange(len(rows.h), device=rows.h.device) % 2 == 0
        halves = rows.part(first), rows.part(~first)
        choice = choose_shape(*halves, needed=model.noise == "varying")
        likelihood.shape, model.chosen["noise"] = choice.shape, _told(choice)
        if choice.shape is not None:  # other residuals are left then; the level: of the other half
            _set_level(likelihood, halves[1], choice.shape(halves[1].h).log())
            condition()
            rows = _residuals_of(model, new)
            likelihood.shape = fit_shape(rows.part(first), choice.strength, choice.length)
            rows = rows.part(~first)
            g = likelihood.shape(rows.h).log()
    _set_level(likelihood, rows, g)
    density = _learn_tails(model, rows) if model.noise == "auto" else _log_normal(model, rows)
    model.held_out_loss = -mean_and_error(density, rows.weight)[0]


def _residuals_of(model: Any, new: Data) -> Residuals:
    h, y, *weights = new
    return residuals(h, y, *model.posterior(h), *weights)


def _set_level(likelihood: Any, rows: Residuals, g: Tensor) -> None:
    level = best_level(rows, g)
    likelihood.set_sigma2(level if likelihood.noises == len(level) else level.mean(0, keepdim=True))


@torch.no_grad()
def tails_of_all(model: Any, known: Data, new: Data) -> None:
    """ν and σ² of a Student-t under which held-out rows are most probable."""
    (h0, y0, *w0), (h1, y1, *w1) = known, new
    model.omega = torch.ones_like(y0, dtype=torch.float64)
    if len(h1):
        for _ in range(ROUNDS):
            _reweigh(model, h0, y0, *w0)
            _set_tails(model, residuals(h1, y1, *model.gp(h1), *w1))


@torch.no_grad()
def resist(model: Any, h: Tensor, y: Tensor, *weights: Tensor) -> None:
    """q(U) under a Student-t: rows far from the function have less weight, in turns."""
    model.omega = torch.ones_like(y, dtype=torch.float64)
    for _ in range(ROUNDS):
        _reweigh(model, h, y, *weights)
    model.omega = model.omega.new_empty(0)


def _set_tails(model: Any, rows: Residuals) -> None:
    found = _tails(model, rows, NUS)
    model.additive.nu.fill_(found.nu)
    model.additive.set_sigma2(found.sigma2)
    model.chosen["noise"] = {"kind": "student", "nu": found.nu}


def _reweigh(model: Any, h: Tensor, y: Tensor, *weights: Tensor) -> None:
    noise = model.noise_at(h)
    set_optimal_q(model.gp, h, y, noise / model.omega, *weights)
    model.omega = model.additive.precisions(*model.gp(h), y, noise).double()


class Tails(NamedTuple):
    """A Student-t, and log p of the residuals under it."""

    nu: float
    sigma2: Tensor  # (T,), or (1,) of all outputs
    log_density: Tensor  # (P,)


def best_tails(rows: Residuals, per_output: bool, g: Tensor, nus: Sequence[float] = NUS) -> Tails:
    """ν, and σ² (per output), of a grid, that make residuals most probable; noise σ² exp(g)."""
    step = -(-len(g) // MOST)
    some, near = rows.part(torch.arange(0, len(g), step)), g[::step]
    levels = _levels((some.square - some.var).clamp_min(0.1 * some.square) / near.exp(), per_output)
    best: tuple[float, float, Tensor] | None = None
    for nu in nus:
        totals = [(some.weight[:, None] * _log_student(some, near + a, nu)).sum(0) for a in levels]
        total = torch.stack(totals)  # (G, T)
        at = total.argmax(0) if per_output else total.sum(1).argmax()[None].expand(total.shape[1])
        value = float(total.gather(0, at[None]).sum())
        if best is None or value > best[0]:
            best = value, nu, levels.gather(0, at[None])[0]
    assert best is not None
    _, nu, level = best
    sigma2 = level.exp() if per_output else level.exp().mean(0, keepdim=True)
    return Tails(nu, sigma2, _log_student(rows, g + sigma2.log(), nu).sum(-1))


def _levels(scale: Tensor, per_output: bool) -> Tensor:
    """Candidates of log σ², (G, T): from far below the median to above the mean, of e² / exp(g)."""
    low = scale.median(0).values.clamp_min(SMALLEST).log() - 5
    high = torch.maximum(low + 10, scale.mean(0).clamp_min(SMALLEST).log() + 2)
    if not per_output:
        low, high = low.min().expand_as(low), high.max().expand_as(high)
    return low + (high - low) * torch.linspace(0, 1, 101).to(scale)[:, None]


def _log_student(rows: Residuals, log_noise: Tensor, nu: float) -> Tensor:
    """log p of each residual and output: the normal of the function and a Student-t."""
    share, ratio = student_mixture(nu, log_noise.device)
    var = rows.var[..., None] + log_noise.exp()[..., None] * ratio  # (P, T, K)
    parts = -0.5 * (log(2 * pi) + var.log() + rows.square[..., None] / var)
    return torch.logsumexp(parts + share.log(), -1)


def level_of(model: Any, known: Data, new: Data) -> Tensor:
    """σ² under which new rows are most probable, of a function fitted to known ones."""
    (h0, y0, *w0), (h1, y1, *w1), likelihood = known, new, model.additive
    how: dict[str, Any] = {"shared": likelihood.noises < model.gp.T, "shape": likelihood.shape}
    weights, new_weights = (w[0] if w else None for w in (w0, w1))
    return held_out_noise(model.gp, h0, y0, h1, y1, weights, new_weights, **how)


def left_out(model: Any, known: Data, new: Data) -> tuple[Residuals, Residuals]:
    """Residuals of known rows, each left out, and of new ones."""
    (h0, y0, *w0), (h1, y1, *w1), gp = known, new, model.gp
    sigma2 = model.noise_at(h0)
    set_optimal_q(gp, h0, y0, sigma2, *w0)
    others = leave_one_out(gp, h0, y0, sigma2, *w0)
    return residuals(h0, y0, *others, *w0), residuals(h1, y1, *gp(h1), *w1)


def _told(choice: Choice) -> dict[str, Any]:
    """For the history."""
    kind = "constant" if choice.shape is None else "varying"
    found = {"gain": choice.gain, "error": choice.error}
    return {"kind": kind, **found, "strength": choice.strength, "length": choice.length}
