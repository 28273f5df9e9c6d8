"""L-BFGS on all rows at once, for what has few parameters and a smooth loss."""

from collections.abc import Callable, Iterable
from math import inf

import torch
from numpy.linalg import LinAlgError
from torch import Tensor

TRIES = 3


@torch.enable_grad()
def minimise(
    parameters: Iterable[Tensor], loss: Callable[[], Tensor], steps: int, history: int = 10
) -> None:
    """Minimise `loss()` over the parameters, in at most so many steps of L-BFGS.

    A line search may step to where a matrix cannot be factorised. It then begins anew, from the
    best parameters before; where they are the start already, the error is raised.
    """
    given, least, best = list(parameters), inf, None

    def closure() -> Tensor:
        nonlocal least, best
        optimizer.zero_grad()
        value = loss()
        if float(value.detach()) < least:
            least, best = float(value.detach()), [part.detach().clone() for part in given]
        value.backward()
        return value

    for _ in range(TRIES):
        optimizer = torch.optim.LBFGS(
            given, max_iter=steps, history_size=history, line_search_fn="strong_wolfe"
        )
        try:
            optimizer.step(closure)
            break
        except LinAlgError:
            if best is None:
                raise
            with torch.no_grad():
                for part, value in zip(given, best, strict=True):
                    part.copy_(value)
    optimizer.zero_grad()
