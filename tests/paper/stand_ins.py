"""Methods that learn at once: a ridge regression in each arm, with a variance made up."""

import os
import time
from pathlib import Path

import numpy as np
from sklearn.linear_model import Ridge

from due.estimators.effects import Posterior, UncertainEffects
from due.paper.trials import Recipe


class RidgePerArm(UncertainEffects):
    """Counts its fits in the file `log`, and raises in fit while the file `broken` is there."""

    _fitted = "arms_"

    def __init__(self, alpha=1.0, log=None, broken=None, seconds=0.0, random_state=None):
        self.alpha = alpha
        self.log = log
        self.broken = broken
        self.seconds = seconds
        self.random_state = random_state

    def _fit(self, study, validation):
        if self.log:
            with Path(self.log).open("a") as file:
                file.write(f"{os.getpid()}\n")
        if self.broken and Path(self.broken).exists():
            raise RuntimeError("singular\nmatrix")
        time.sleep(self.seconds)
        both = study.join(validation)
        noise = np.random.default_rng(self.random_state).normal(scale=0.1, size=len(both.y))
        self.arms_ = [
            Ridge(self.alpha).fit(both.X[both.t == arm], (both.y + noise)[both.t == arm])
            for arm in (0, 1)
        ]
        self.centre_ = both.X.mean(0)
        self.history_ = {"loss": [1.0, 0.5]}

    def _outcomes(self, X):
        return np.stack([arm.predict(X) for arm in self.arms_], axis=1)

    def _posterior(self, X):
        outcomes = self._outcomes(X)
        return Posterior(outcomes[:, 1] - outcomes[:, 0], 0.1 * ((X - self.centre_) ** 2).sum(1))

    def _average(self, X):
        return 0.0, 1.0


def recipe(version=1, title="Ridge", as_printed=None, **settings):
    return Recipe(
        title,
        lambda seed: RidgePerArm(**settings, random_state=seed),
        version=version,
        as_printed=as_printed,
    )
