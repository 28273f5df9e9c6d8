"""The noise of a deep GP, once its features are chosen: its level, and how it depends on x."""

from math import log, pi
from typing import Any

import torch
from torch import Tensor

from due.gp.collapsed import held_out_noise, leave_one_out, set_optimal_q
from due.gp.likelihoods import StudentT, student_mixture
from due.gp.noise import Choice, Residuals, best_level, choose_shape, fit_shape, residuals

NUS = (3.0, 4.0, 6.0, 10.0, 30.0)
ROUNDS = 5  # of weights and q(U) in turn
SMALLEST = 1e-10
Data = list[Tensor]  # features, y and perhaps weights


@torch.no_grad()
def noise_of_all(model: Any, known: Data, new: Data) -> None:
    """From known rows, each left out, and new ones, with q(U) in closed form."""
    likelihood = model.additive
    if model.finishing == "noise":
        likelihood.set_sigma2(_level(model, known, new))
    if model.noise != "constant":
        _learn_shape(model, known, new)
    if model.finishing == "noise":
        _judge(model, _left(model, known, new)[1])


def _learn_shape(model: Any, known: Data, new: Data) -> None:
    likelihood = model.additive
    choice = choose_shape(*_left(model, known, new), needed=model.noise == "varying")
    likelihood.shape, model.chosen = choice.shape, {"noise": _told(choice)}
    if choice.shape is not None:  # with rows weighted by it, other residuals are left
        likelihood.set_sigma2(_level(model, known, new))
        left_out, _ = _left(model, known, new)
        likelihood.shape = fit_shape(left_out, choice.strength, choice.length)
        likelihood.set_sigma2(_level(model, known, new))


def _judge(model: Any, rows: Residuals) -> None:
    """How probable held-out rows are under this noise, before the function learns from them."""
    var = rows.var + model.noise_at(rows.h)
    losses = 0.5 * (log(2 * pi) + var.log() + rows.square / var).sum(-1)
    model.held_out_loss = float((rows.weight * losses).sum() / rows.weight.sum())


@torch.no_grad()
def noise_of_held_out(model: Any, new: Data) -> None:
    """From rows that were held out: a half of them fits the shape, the other half judges it."""
    likelihood, (h, y, *weights) = model.additive, new
    rows = residuals(h, y, *model.posterior(h), *weights)
    g, likelihood.shape = torch.zeros_like(rows.square), None
    if isinstance(likelihood, StudentT):
        _set_tails(model, rows)
        return
    if model.noise != "constant":
        first = torch.arange(len(h), device=h.device) % 2 == 0
        halves = rows.part(first), rows.part(~first)
        choice = choose_shape(*halves, needed=model.noise == "varying")
        likelihood.shape, model.chosen = choice.shape, {"noise": _told(choice)}
        if choice.shape is not None:  # its level comes from the other half
            rows, g = halves[1], choice.shape(halves[1].h).log()
    level = best_level(rows, g)
    likelihood.set_sigma2(level if likelihood.noises == len(level) else level.mean(0, keepdim=True))


@torch.no_grad()
def tails_of_all(model: Any, known: Data, new: Data) -> None:
    """ν and σ² of a Student-t under which held-out rows are most probable; q(U) from all rows."""
    (h0, y0, *w0), (h1, y1, *w1), gp = known, new, model.gp
    model.omega = model.omega[: len(h0)]
    if len(h1):
        for _ in range(ROUNDS):
            _reweigh(model, h0, y0, *w0)
            rows = residuals(h1, y1, *gp(h1), *w1)
            _set_tails(model, rows)
    h, y, *w = (torch.cat(parts) for parts in zip(known, new, strict=True))
    if model.bound == "exact":
        gp.grow(h)
    model.omega = torch.ones_like(y, dtype=torch.float64)
    for _ in range(ROUNDS):
        _reweigh(model, h, y, *w)
    model.omega = model.omega.new_empty(0)


def _set_tails(model: Any, rows: Residuals) -> None:
    likelihood = model.additive
    nu, level = best_tails(rows, likelihood.noises == model.gp.T)
    likelihood.nu.fill_(nu)
    likelihood.set_sigma2(level)
    model.chosen = {"noise": {"kind": "student", "nu": nu}}


def _reweigh(model: Any, h: Tensor, y: Tensor, *weights: Tensor) -> None:
    noise = model.noise_at(h)
    set_optimal_q(model.gp, h, y, noise / model.omega, *weights)
    model.omega = model.additive.precisions(*model.gp(h), y, noise).double()


def best_tails(rows: Residuals, per_output: bool) -> tuple[float, Tensor]:
    """ν, and σ² (per output), of a grid, that make residuals most probable."""
    scale = (rows.square - rows.var).clamp_min(0.1 * rows.square).median(0).values
    levels = scale.clamp_min(SMALLEST).log() + torch.linspace(-5, 5, 101).to(scale)[:, None]
    best: tuple[float, float, Tensor] | None = None
    for nu in NUS:
        share, ratio = student_mixture(nu, scale.device)
        totals = []
        for level in levels:
            var = rows.var[..., None] + level.exp()[:, None] * ratio  # (P, T, K)
            log_normal = -0.5 * (log(2 * pi) + var.log() + rows.square[..., None] / var)
            density = torch.logsumexp(log_normal + share.log(), -1)
            totals.append((rows.weight[:, None] * density).sum(0))
        total = torch.stack(totals)  # (G, T)
        at = total.argmax(0) if per_output else total.sum(1).argmax()[None].expand(total.shape[1])
        value = float(total.gather(0, at[None]).sum())
        if best is None or value > best[0]:
            sigma2 = levels.gather(0, at[None])[0].exp()
            best = value, nu, sigma2 if per_output else sigma2.mean(0, keepdim=True)
    assert best is not None
    return best[1], best[2]


def _level(model: Any, known: Data, new: Data) -> Tensor:
    (h0, y0, *w0), (h1, y1, *w1), likelihood = known, new, model.additive
    how: dict[str, Any] = {"shared": likelihood.noises < model.gp.T, "shape": likelihood.shape}
    return held_out_noise(model.gp, h0, y0, h1, y1, *w0, *w1, **how)


def _left(model: Any, known: Data, new: Data) -> tuple[Residuals, Residuals]:
    """Residuals of known rows, each left out, and of new ones."""
    (h0, y0, *w0), (h1, y1, *w1), gp = known, new, model.gp
    sigma2 = model.noise_at(h0)
    set_optimal_q(gp, h0, y0, sigma2, *w0)
    left_out = leave_one_out(gp, h0, y0, sigma2, *w0)
    return residuals(h0, y0, *left_out, *w0), residuals(h1, y1, *gp(h1), *w1)


def _told(choice: Choice) -> dict[str, Any]:
    """For the history."""
    kind = "constant" if choice.shape is None else "varying"
    found = {"gain": choice.gain, "error": choice.error}
    return {"kind": kind, **found, "strength": choice.strength, "length": choice.length}
