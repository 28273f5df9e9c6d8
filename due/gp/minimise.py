"""L-BFGS on all rows at once, for what has few parameters and a smooth loss."""

from collections.abc import Callable, Iterable
from math import isfinite

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

TRIES = 3
SHORTER = 0.1  # steps of a try, relative to those of one that found nothing better


@torch.enable_grad()
def minimise(
    parameters: Iterable[Tensor], loss: Callable[[], Tensor], steps: int, history: int = 10
) -> None:
    """Minimise `loss()` over the parameters, in up to so many steps of L-BFGS.

    A line search may step to where a matrix cannot be factorised, or the loss is not finite. It
    then begins anew from the best point so far; with shorter steps, if that is where it began. If
    nothing better than the start is found so, the error is raised.
    """
    given = list(parameters)
    best = [part.detach().clone() for part in given]
    losses: list[float] = []  # ever lower; the last one is that of the best point

    def closure() -> Tensor:
        nonlocal best
        optimizer.zero_grad()
        value = loss()
        now = float(value.detach())
        if losses and not isfinite(now):
            raise LinAlgError(f"the loss is {now}")
        if isfinite(now) and (not losses or now < losses[-1]):
            losses.append(now)
            best = [part.detach().clone() for part in given]
        value.backward()
        return value

    rate = 1.0
    for attempt in range(TRIES):
        known = max(1, len(losses))
        optimizer = torch.optim.LBFGS(
            given, rate, steps, history_size=history, line_search_fn="strong_wolfe"
        )
        try:
            optimizer.step(closure)
            break
        except LinAlgError:
            with torch.no_grad():
                for part, value in zip(given, best, strict=True):
                    part.copy_(value)
            if not losses or (attempt == TRIES - 1 and len(losses) == 1):
                raise
            rate = 1.0 if len(losses) > known else SHORTER * rate
    optimizer.zero_grad()
