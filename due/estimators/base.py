"""What the estimators of DUE share: Algorithm 1, and how far a row is from the training data."""

from abc import abstractmethod
from typing import Any

from numpy.typing import ArrayLike
from torch import Tensor, nn

from due import archive
from due.estimators.checks import check_features, check_positive, check_whole
from due.estimators.rows import Floats
from due.estimators.saved import Tensors
from due.estimators.torch_estimator import TorchEstimator
from due.estimators.training import Data, Objective
from due.frozen import FrozenDUE, freeze
from due.gp import InducingGP, Likelihood, Reference, features, initialise
from due.gp.kernels import KINDS
from due.model import DUE

INITIAL_POINTS = 1000  # p of Algorithm 1


class DUEEstimator(TorchEstimator):
    """Abstract: a GP on the features; the two final classes say which likelihood and bound."""

    n_inducing: int
    kernel: str
    gp_lr: float | None

    model_: DUE
    frozen_: FrozenDUE
    reference_: Reference

    @abstractmethod
    def _likelihood(self) -> Likelihood: ...

    @abstractmethod
    def _start_q(self, gp: InducingGP, h: Tensor, y: Tensor) -> None: ...

    @abstractmethod
    def _bound(self, data: Data) -> Objective: ...

    @abstractmethod
    def _absorb(self, known: Data, held_out: Data) -> None: ...

    def ood_score(self, X: ArrayLike) -> Floats:
        """How far each row is from the training data, in [0, 1]: 0 on it, 1 where it says nothing.

        One minus the share of the GP's prior variance that is gone once its values at (up to)
        1,000 training rows are known; see `due.gp.Reference`.
        """
        return self._map(lambda x: 1 - self.reference_(self.frozen_.f(x)), X)

    def score_samples(self, X: ArrayLike) -> Floats:
        """−`ood_score(X)`: higher is more like the training data, as elsewhere in scikit-learn."""
        return -self.ood_score(X)

    def _check_gp_parameters(self) -> None:
        check_whole("n_inducing", self.n_inducing)
        if self.gp_lr is not None:
            check_positive("gp_lr", self.gp_lr)
        if self.kernel not in KINDS:
            raise ValueError(f"kernel={self.kernel!r} is not one of {', '.join(KINDS)}")

    def _build(self, f: nn.Module, X: Tensor, y: Tensor, seed: int) -> DUE:
        """Algorithm 1 up to its loop: features, inducing points, length scale."""
        h, picked = features(f, X, INITIAL_POINTS, seed)
        check_features(h, len(picked))
        Z, lengthscale = initialise(h, min(self.n_inducing, len(h)), seed)
        gp = InducingGP(Z, self._T, lengthscale, self.kernel)
        self._start_q(gp, h, y[picked])
        return DUE(f, gp, self._likelihood(), len(X))

    def _objective(self, data: Data) -> Objective:
        self.model_.n_data = len(data[0])  # rows: their weights do the rest
        return self._bound(data)

    def _losses(self, x: Tensor, y: Tensor) -> Tensor:
        return -self.model_.expected_log_prob(x, y)

    def _complete(self, known: Data, held_out: Data, seed: int) -> None:
        self._absorb(known, held_out)
        h, _ = features(self.model_.f, known[0].to(self.device), INITIAL_POINTS, seed)
        self.reference_ = Reference(h, self.model_.gp.kernel)

    def _predictor(self) -> FrozenDUE:
        return freeze(self.model_).double()

    def _describe(self) -> tuple[dict[str, Any], Tensors]:
        state = {**self.model_.state_dict(), "reference": self.reference_.H}
        return archive.describe(self.model_), state

    def _rebuild(self, f: nn.Module, config: dict[str, Any], tensors: Tensors) -> DUE:
        state = {name: tensor for name, tensor in tensors.items() if name != "reference"}
        model = archive.rebuild(config, state, f).to(self.device)
        self.reference_ = Reference(tensors["reference"].to(self.device), model.gp.kernel)
        return model
