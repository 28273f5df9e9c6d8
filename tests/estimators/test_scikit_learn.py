"""scikit-learn's own suite, with no declared exception."""

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from due.estimators import DUEClassifier, DUERegressor

FAST = {"epochs": 12, "n_inducing": 20, "random_state": 0}


@parametrize_with_checks([DUEClassifier(**FAST), DUERegressor(**FAST)])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.SkipTestWarning")
@pytest.mark.usefixtures("as_users_run")
def test_scikit_learn(estimator, check):
    check(estimator)
