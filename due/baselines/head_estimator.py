"""A network and a head trained together: what the rivals without inducing points share."""

from abc import abstractmethod
from typing import Any

import torch
from jaxtyping import Shaped
from torch import Tensor, nn

from due import archive
from due.estimators.checks import check_features
from due.estimators.saved import Tensors
from due.estimators.torch_estimator import TorchEstimator
from due.lipschitz import fold


class HeadEstimator(TorchEstimator):
    """Abstract: a `TorchEstimator` whose model can be built from the number of features alone.

    The model holds the network in `f`, and `model(x, y, weights)` is the loss of a batch. What
    `_initialise` and `_complete` learn from the rows belongs in its buffers, of shapes known
    beforehand: they are saved and loaded with it.
    """

    @abstractmethod
    def _head(self, f: nn.Module, J: int) -> nn.Module:
        """The model on a network of J features, with `_T` outputs."""

    def _initialise(self, model: Any, X: Tensor) -> None:
        """Set what an untrained model needs to know of its rows, such as a length scale, if any."""

    def _build(self, f: nn.Module, X: Tensor, y: Tensor, seed: int) -> nn.Module:
        model = self._head(f, n_features(f, X[:2]))
        self._initialise(model, X)
        return model

    def _predictor(self) -> nn.Module:
        return fold(self.model_).requires_grad_(False).double().eval()

    def _describe(self) -> tuple[dict[str, Any], Tensors]:
        return archive.describe_network(self.model_.f), self.model_.state_dict()

    def _rebuild(self, f: nn.Module, config: dict[str, Any], tensors: Tensors) -> nn.Module:
        J = n_features(f.eval(), torch.zeros(2, *self.row_shape_))
        bounded = archive.constrained(f, config["constraints"])
        return archive.load_state(self._head(bounded, J), tensors)


@torch.no_grad()
def n_features(f: nn.Module, x: Shaped[Tensor, "N ..."]) -> int:
    """J of f(x), (N, J)."""
    h = f(x)
    check_features(h, len(x))
    return h.shape[1]
