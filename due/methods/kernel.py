"""The kernel of a deep GP of values, once its features are chosen.

Training ends where held-out rows are predicted best. Length scale and output scale are then still
on their way along a ridge, on which predictions hardly change near the data, but do far from it.
"""

import warnings
from typing import Any

import torch
from numpy.linalg import LinAlgError
from torch import Tensor, nn

from due.gp.cholesky import JitterWarning
from due.gp.collapsed import collapsed_bound
from due.gp.noise import log_densities, mean_and_error
from due.methods.noise import Data, left_out, level_of

ITERATIONS = 30
MOST = 500  # inducing points: with more of them, as exact inference has, it takes minutes


def settle_kernel(model: Any, known: Data, new: Data) -> None:
    """Go to the end of the ridge, unless that makes new rows less probable by a standard error.

    The noise goes with it; what new rows say of it follows.
    """
    if len(model.gp.Z) > MOST:
        return
    parameters = [*model.gp.kernel.parameters(), model.additive.raw_sigma2]
    as_trained = [part.detach().clone() for part in parameters]
    before, weights = _judge(model, known, new)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", JitterWarning)
            _maximise(model, parameters, *known)
            gain, error = mean_and_error(_judge(model, known, new)[0] - before, weights)
        settled = gain >= -error  # not so if they are NaN
    except LinAlgError:
        settled = False
    if not settled:
        with torch.no_grad():
            for part, value in zip(parameters, as_trained, strict=True):
                part.copy_(value)
    model.chosen["kernel"] = {"settled": settled}


@torch.enable_grad()
def _maximise(
    model: Any, parameters: list[nn.Parameter], h: Tensor, y: Tensor, *weights: Tensor
) -> None:
    """The collapsed bound over these parameters."""
    Z = model.gp.Z.detach()
    optimizer = torch.optim.LBFGS(
        parameters, max_iter=ITERATIONS, history_size=10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimizer.zero_grad()
        bound = collapsed_bound(
            model.gp, h, y, model.noise_at(h), weights[0] if weights else None, Z
        )
        total: Tensor = -bound / len(y)
        total.backward()
        return total

    optimizer.step(loss)
    optimizer.zero_grad()


@torch.no_grad()
def _judge(model: Any, known: Data, new: Data) -> tuple[Tensor, Tensor]:
    """log p of new rows at the noise that suits them best, and their weights."""
    model.additive.set_sigma2(level_of(model, known, new))
    rows = left_out(model, known, new)[1]
    return log_densities(rows, torch.zeros_like(rows.square)), rows.weight
