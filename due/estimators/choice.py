"""Candidates, ways to train one estimator, which held-out rows choose among or weigh.

Each candidate is trained on the same rows from the same seed. The one under which the held-out rows
are most probable is kept, so one model answers, bit for bit the one which that candidate gives
alone; or they answer together. The cost is the sum of their training times.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from copy import copy
from math import exp, inf, isnan, sqrt
from typing import Any, ClassVar

from due.rows.randomness import own_randomness
from due.training.loop import DivergenceError

Arguments = Mapping[str, Any]
LIGHT = 0.01  # weight of a candidate that is left out
LEARNED = ("model_", "predictor_", "history_", "row_shape_", "_proof")


class Choosing:
    """Abstract: leaves some arguments to candidates; to be mixed into a `Trained`.

    `_multiplicity` has the candidates that count more than once when they answer together.
    """

    _multiplicity: ClassVar[Mapping[str, float]] = {}

    @abstractmethod
    def _candidates(self, n: int) -> Mapping[str, Arguments]:
        """By name, values of the arguments that were left open, for n rows to train on.

        The first is taken where no rows are held out.
        """

    @abstractmethod
    def _combine(self, trials: Mapping[str, Any], weights: Mapping[str, float]) -> None:
        """Let fitted candidates answer together, if it is so wished; now the best one does."""


def choose(
    estimator: Any,
    candidates: Mapping[str, Arguments],
    learn: Callable[[Any], None],
    seed: int,
    n: int,
) -> None:
    """Let the estimator learn as each candidate, and be the best of them by n held-out rows.

    Its `history_` gains `chosen`, the name of that one, its `arguments`, and `candidates`, the mean
    −log p(y) of the held-out rows under each, in standard units and at the noise that suits them
    best; None for one that diverged.
    """
    names = list(candidates) if n else list(candidates)[:1]
    trials: dict[str, Any] = {}
    failure: DivergenceError | None = None
    for name in names:
        trial = copy(estimator).set_params(**candidates[name])
        try:
            with own_randomness(seed):
                learn(trial)
            trials[name] = trial
        except DivergenceError as error:
            failure = error
    if not trials:
        assert failure is not None
        raise failure
    losses = {name: trial.history_.get("held_out") for name, trial in trials.items()}
    chosen = min(trials, key=lambda name: _rank(losses[name]))
    for attribute in LEARNED:
        setattr(estimator, attribute, getattr(trials[chosen], attribute))
    if len(candidates) > 1:
        estimator.history_ |= {
            "chosen": chosen,
            "arguments": dict(candidates[chosen]),
            "candidates": {name: losses.get(name) for name in names},
            "seconds_of_all": sum(sum(each.history_["seconds"]) for each in trials.values()),
        }
    if len(trials) > 1:
        estimator._combine(trials, weigh(losses, n, estimator._multiplicity))


def weigh(
    losses: Mapping[str, float | None], n: int, multiplicity: Mapping[str, float]
) -> dict[str, float]:
    """Weights of candidates by their mean losses on n rows, ∝ e^(−√n d), d behind the best.

    The loss of a row has a standard deviation of about 1, so √n d counts standard errors: what
    chance alone may have put behind keeps its say, and less of it the more rows there are. A
    candidate of multiplicity m weighs as m of them.
    """
    ranks = {name: rank for name, loss in losses.items() if (rank := _rank(loss)) < inf}
    best = min(ranks.values(), default=inf)
    raw = {
        name: multiplicity.get(name, 1.0) * exp(-sqrt(n) * (rank - best))
        for name, rank in ranks.items()
    }
    kept = {name: each for name, each in raw.items() if each > LIGHT * sum(raw.values())}
    return {name: each / sum(kept.values()) for name, each in kept.items()}


def _rank(loss: float | None) -> float:
    return inf if loss is None or isnan(loss) else loss
