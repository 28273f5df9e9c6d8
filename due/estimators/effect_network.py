"""Treatment effects from a method on rows [x, t]: people → tables → training → answers."""

from abc import abstractmethod
from typing import Any

import numpy as np
from torch import Tensor, nn

from due.estimators.effects import EffectEstimator, Posterior, UncertainEffects
from due.estimators.network import Trained, better_than_mean, estimator, learn
from due.estimators.residuals import missed_effect, warn_of
from due.predictor import EffectPredictor
from due.rows.categories import warn_of_codes
from due.rows.checks import argument, check_fraction
from due.rows.randomness import seeded
from due.rows.scale import Floats, Scale
from due.rows.source import Table
from due.rows.study import Study


@estimator
class EffectNetwork(Trained, EffectEstimator):
    """Abstract: both outcomes of a person from one network."""

    validation_fraction: float = argument(0.3, check_fraction)
    _fitted = "predictor_"

    def _outcomes(self, X: Floats) -> Floats:
        return self._ask(self.predictor_.outcomes, X)

    @abstractmethod
    def _tables(
        self, study: Study, validation: Study | None, seed: int
    ) -> tuple[Table, Table | None]:
        """People to learn from and held out, as rows [x, t] in standard units; sets the scales."""

    def _fit(self, study: Study, validation: Study | None) -> None:
        warn_of_codes(self, study.X, study.y[:, None], stacklevel=4)
        with seeded(self.random_state) as seed:
            known, held_out = self._tables(study, validation, seed)
            learn(self, known, held_out, 1, True, seed)
        self._look_back(held_out)

    def _look_back(self, held_out: Table | None) -> None:
        """Warn if held-out people show an effect that was missed."""
        residuals = getattr(self.model_, "held_out_residuals", None)
        if held_out is None or residuals is None:
            return
        rows = held_out.data[0].double().numpy()
        missed = missed_effect(rows[:, :-1], rows[:, -1], residuals[:, 0].numpy())
        self.history_["missed_effect"] = missed._asdict()
        warn_of(missed, getattr(self, "feature_names_in_", None))

    def _explains(self, x: Tensor, y: Tensor) -> bool:
        people, t = x[:, :-1].double().numpy(), x[:, -1].numpy()
        outcomes = self.y_scale_(self._outcomes(self.scale_.inverse(people)))
        mean = np.where(t == 1, outcomes[:, 1], outcomes[:, 0])[:, None]
        return better_than_mean(mean, y.double().numpy())

    def _wrap(self, model: nn.Module) -> EffectPredictor:
        return EffectPredictor(model, self.scale_, self.y_scale_)

    def _learned(self) -> dict[str, Any]:
        return {"y_scale": self.y_scale_.as_lists()}

    def _relearn(self, learned: dict[str, Any]) -> None:
        self.y_scale_ = Scale.from_lists(learned["y_scale"])


@estimator
class UncertainEffectNetwork(UncertainEffects, EffectNetwork):
    """Abstract: an `EffectNetwork` that knows the variance of its effects."""

    def _posterior(self, X: Floats) -> Posterior:
        return Posterior(*self._ask(self.predictor_.posterior, X))

    def _average(self, X: Floats) -> tuple[float, float]:
        mean, var = self._ask_jointly(self.predictor_.average, X)
        return float(mean[0]), float(var[0])
