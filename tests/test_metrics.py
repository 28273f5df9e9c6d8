import math
from fractions import Fraction

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.testing import assert_allclose, assert_array_equal
from scipy.integrate import quad
from scipy.stats import norm

from due import metrics

# Few distinct values, so that ties are common.
scores = arrays(np.float64, st.integers(1, 25), elements=st.integers(-4, 4).map(float))
seeds = st.integers(0, 2**32 - 1)
unhurried = settings(deadline=None)  # other runs may share the machine


def predictions(seed: int = 0, n: int = 60, classes: int = 4):
    rng = np.random.default_rng(seed)
    return rng.dirichlet(np.full(classes, 0.4), size=n), rng.integers(classes, size=n)


def regression(seed: int = 0, shape: tuple[int, ...] = (40,)):
    rng = np.random.default_rng(seed)
    return rng.normal(size=shape), rng.normal(size=shape), rng.uniform(0.1, 2, size=shape)


def labelled(score_in, score_out):
    y = np.r_[np.zeros(len(score_in)), np.ones(len(score_out))]
    return y, np.r_[score_in, score_out]


# Classification


def test_classification_metrics_equal_scikit_learn():
    p, y = predictions()
    assert metrics.accuracy(p, y) == sklearn.metrics.accuracy_score(y, p.argmax(1))
    assert_allclose(metrics.nll(p, y), sklearn.metrics.log_loss(y, p, labels=range(4)))
    assert_allclose(
        metrics.brier(p, y),
        sklearn.metrics.brier_score_loss(y, p, labels=range(4), scale_by_half=False),
    )


@unhurried
@given(seeds, st.integers(1, 20))
def test_ece_equals_a_loop_over_bins(seed, n_bins):
    p, y = predictions(seed)
    confidence, correct = p.max(1), p.argmax(1) == y
    want = 0.0
    for b in range(n_bins):
        rows = (confidence > b / n_bins) & (confidence <= (b + 1) / n_bins)
        if rows.any():
            want += rows.mean() * abs(correct[rows].mean() - confidence[rows].mean())
    assert_allclose(metrics.ece(p, y, n_bins=n_bins), want, atol=1e-12)


def test_ece_bins_are_closed_on_the_right():
    p = [[0.5, 0.5], [0.51, 0.49]]  # of two bins, (0, .5] and (.5, 1]: one row each
    assert_allclose(metrics.ece(p, [0, 1], n_bins=2), (0.5 + 0.51) / 2)


def test_ece_is_zero_when_certain_and_right_and_one_when_certain_and_wrong():
    p = np.eye(3)
    assert metrics.ece(p, [0, 1, 2]) == 0
    assert metrics.ece(p, [1, 2, 0]) == 1


def test_entropy_equals_a_loop_and_spans_zero_to_log_c():
    p, _ = predictions()
    assert_allclose(metrics.entropy(p), [-sum(q * math.log(q) for q in row) for row in p])
    assert_allclose(metrics.entropy([[0.25] * 4, [0.0, 1.0, 0.0, 0.0]]), [math.log(4), 0])


def test_nll_of_an_impossible_label_is_infinite():
    assert metrics.nll([[1.0, 0.0]], [1]) == math.inf


@unhurried
@given(seeds)
def test_expected_nll_bounds_nll_from_above(seed):
    rng = np.random.default_rng(seed)
    p = rng.dirichlet(np.ones(3), size=(8, 20))  # (S, N, C)
    y = rng.integers(3, size=20)
    log_p = np.log(p[:, np.arange(20), y])
    assert metrics.expected_nll(log_p) >= metrics.nll(p.mean(0), y)
    assert_allclose(metrics.expected_nll(log_p[:1]), metrics.nll(p[0], y))


@pytest.mark.parametrize(
    "metric", [metrics.accuracy, metrics.nll, metrics.brier, metrics.ece], ids=lambda f: f.__name__
)
@unhurried
@given(seed=seeds)
def test_classification_metrics_ignore_the_order_of_rows_and_of_classes(metric, seed):
    p, y = predictions(seed)
    rng = np.random.default_rng(seed)
    rows, classes = rng.permutation(len(y)), rng.permutation(p.shape[1])
    assert_allclose(metric(p[rows], y[rows]), metric(p, y), atol=1e-12)
    assert_allclose(metric(p[:, classes], np.argsort(classes)[y]), metric(p, y), atol=1e-12)


def test_float32_probabilities_and_small_integer_labels_are_accepted():
    p, y = predictions()
    assert_allclose(metrics.nll(p.astype(np.float32), y.astype(np.uint8)), metrics.nll(p, y), 1e-5)


@pytest.mark.parametrize(
    ("probs", "y", "message"),
    [
        ([0.5, 0.5], [0], r"probs must have 2 dimension"),
        ([[0.5, 0.6]], [0], r"Σ_c probs must be 1 .*probs\[0\] = 1.1"),
        ([[1.5, -0.5]], [0], r"probs must be at least 0 .*probs\[0, 1\] = -0.5"),
        ([[0.5, math.nan]], [0], r"probs must be a number: probs\[0, 1\] = nan"),
        ([[0.5, math.inf]], [0], r"probs must be finite"),
        (np.empty((0, 2)), np.empty(0, int), r"probs is empty"),
        ([[0.5, 0.5]], [2], r"y must be a class of probs, 0 to 1: y\[0\] = 2"),
        ([[0.5, 0.5]], [-1], r"y must be a class of probs, 0 to 1: y\[0\] = -1"),
        ([[0.5, 0.5]], [0.0], r"integer class labels, got dtype float64"),
        ([[0.5, 0.5]], [[0]], r"y must have 1 dimension"),
        ([[0.5, 0.5]], [0, 1], r"shapes must agree: probs \(1,\), y \(2,\)"),
    ],
)
def test_bad_classification_input_is_named(probs, y, message):
    for metric in (metrics.accuracy, metrics.nll, metrics.brier, metrics.ece):
        with pytest.raises(ValueError, match=message):
            metric(probs, y)


def test_ece_needs_a_bin():
    with pytest.raises(ValueError, match="n_bins must be at least 1, got 0"):
        metrics.ece([[1.0, 0.0]], [0], n_bins=0)


# Out-of-distribution detection


@unhurried
@given(scores, scores)
def test_auroc_and_aupr_equal_scikit_learn_with_ties(score_in, score_out):
    y, score = labelled(score_in, score_out)
    assert_allclose(metrics.auroc(score_in, score_out), sklearn.metrics.roc_auc_score(y, score))
    assert_allclose(
        metrics.aupr(score_in, score_out), sklearn.metrics.average_precision_score(y, score)
    )


@unhurried
@given(scores, scores)
def test_auroc_is_the_share_of_pairs_in_order(score_in, score_out):
    wins = [(o > i) + (o == i) / 2 for i in score_in for o in score_out]
    assert_allclose(metrics.auroc(score_in, score_out), np.mean(wins))


@unhurried
@given(scores, scores)
def test_fpr95_equals_a_search_over_thresholds(score_in, score_out):
    admissible = [
        t
        for t in score_out
        if Fraction(int((score_out >= t).sum()), len(score_out)) >= Fraction("0.95")
    ]
    want = np.mean(score_in >= max(admissible))
    assert metrics.fpr95(score_in, score_out) == want


@pytest.mark.parametrize("n", [20, 40, 100, 1000])  # 0.95 n is whole: floats must not round it up
def test_fpr95_lets_exactly_five_percent_of_ood_go(n):
    out = np.arange(n, dtype=float)
    threshold = n // 20
    assert metrics.fpr95([threshold - 0.5], out) == 0
    assert metrics.fpr95([float(threshold)], out) == 1


@unhurried
@given(scores, scores, seeds)
def test_detection_ignores_order_and_monotone_transforms(score_in, score_out, seed):
    rng = np.random.default_rng(seed)
    for metric in (metrics.auroc, metrics.aupr, metrics.fpr95):
        want = metric(score_in, score_out)
        assert_allclose(metric(rng.permutation(score_in), rng.permutation(score_out)), want)
        assert_allclose(metric(np.exp(3 * score_in) - 7, np.exp(3 * score_out) - 7), want)


@unhurried
@given(scores, scores)
def test_swapping_the_sets_mirrors_auroc(score_in, score_out):
    swapped = metrics.auroc(score_out, score_in)
    assert_allclose(swapped, 1 - metrics.auroc(score_in, score_out), atol=1e-12)


@unhurried
@given(st.integers(1, 30), st.integers(1, 30))
def test_constant_scores_are_chance(n_in, n_out):
    score_in, score_out = np.zeros(n_in), np.zeros(n_out)
    assert metrics.auroc(score_in, score_out) == 0.5
    assert_allclose(metrics.aupr(score_in, score_out), n_out / (n_in + n_out))
    assert metrics.fpr95(score_in, score_out) == 1


def test_perfect_separation_also_with_infinite_scores():
    score_in, score_out = [-math.inf, 0.0], [1.0, math.inf]
    assert metrics.auroc(score_in, score_out) == metrics.aupr(score_in, score_out) == 1
    assert metrics.fpr95(score_in, score_out) == 0


@pytest.mark.parametrize("metric", [metrics.auroc, metrics.aupr, metrics.fpr95])
def test_bad_scores_are_named(metric):
    with pytest.raises(ValueError, match=r"score_in must be a number: score_in\[1\] = nan"):
        metric([0.0, math.nan], [1.0])
    with pytest.raises(ValueError, match="score_out is empty"):
        metric([0.0], [])
    with pytest.raises(ValueError, match="score_out must have 1 dimension"):
        metric([0.0], [[1.0]])


# Regression


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_rmse_and_gaussian_nll_equal_the_obvious(shape):
    y, mean, var = regression(shape=shape)
    flat = list(zip(y.flat, mean.flat, var.flat, strict=True))
    assert_allclose(
        metrics.rmse(y, mean), math.sqrt(sum((a - m) ** 2 for a, m, _ in flat) / y.size)
    )
    want = -np.mean([norm.logpdf(a, m, math.sqrt(v)) for a, m, v in flat])
    assert_allclose(metrics.gaussian_nll(y, mean, var), want)
    assert_allclose(
        metrics.rmse(y.ravel(), mean.ravel()),
        sklearn.metrics.root_mean_squared_error(y.ravel(), mean.ravel()),
    )


@pytest.mark.parametrize("noise", [0.7, [0.2, 0.7, 1.5]], ids=["shared", "per output"])
def test_expected_gaussian_nll_equals_gauss_hermite_quadrature(noise):
    y, mean, var = regression(shape=(10, 3))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    f = mean + np.sqrt(var) * nodes[:, None, None]  # (S, N, T)
    log_p = norm.logpdf(y, f, np.sqrt(noise))
    want = -np.einsum("s,snt->nt", weights / weights.sum(), log_p).mean()
    assert_allclose(metrics.expected_gaussian_nll(y, mean, var, noise), want)


def test_expected_gaussian_nll_is_gaussian_nll_without_latent_variance_and_above_it_with():
    y, mean, var = regression()
    noise = np.full_like(var, 0.3)
    certain = metrics.expected_gaussian_nll(y, mean, np.zeros_like(y), 0.3)
    assert_allclose(certain, metrics.gaussian_nll(y, mean, noise))
    expected = metrics.expected_gaussian_nll(y, mean, var, 0.3)
    assert expected >= metrics.gaussian_nll(y, mean, var + noise)


@pytest.mark.parametrize("y", [-4.0, -0.3, 1.0, 2.7])
def test_crps_equals_its_integral(y):
    m, sigma = 1.0, 0.6
    below, _ = quad(lambda x: norm.cdf(x, m, sigma) ** 2, -20, y, points=[m])
    above, _ = quad(lambda x: norm.sf(x, m, sigma) ** 2, y, 20, points=[m])
    assert_allclose(metrics.crps_gaussian([y], [m], [sigma**2]), below + above, atol=1e-7)


def test_crps_tends_to_the_absolute_error_as_the_variance_vanishes():
    y, mean, _ = regression(shape=(40, 2))
    crps = metrics.crps_gaussian(y, mean, np.full_like(y, 1e-16))
    assert_allclose(crps, np.abs(y - mean).mean(), atol=1e-7)


@pytest.mark.parametrize("shape", [(40,), (40, 3)])
def test_coverage_and_interval_score_equal_loops(shape):
    y, centre, width = regression(shape=shape)
    lower, upper = centre - width, centre + width
    inside, score = [], []
    for a, low, high in zip(y.flat, lower.flat, upper.flat, strict=True):
        inside.append(low <= a <= high)
        penalty = low - a if a < low else a - high if a > high else 0
        score.append(high - low + 2 / 0.1 * penalty)
    assert_allclose(metrics.coverage(y, lower, upper), np.mean(inside))
    assert_allclose(metrics.interval_score(y, lower, upper, alpha=0.1), np.mean(score))


def test_the_true_quantiles_have_the_best_interval_score():
    y = np.random.default_rng(0).normal(size=20_000)
    score = {
        z: metrics.interval_score(y, np.full_like(y, -z), np.full_like(y, z), alpha=0.1)
        for z in (1.2, norm.ppf(0.95), 2.1)
    }
    assert min(score, key=score.__getitem__) == norm.ppf(0.95)


def test_infinite_intervals_cover_everything_and_score_infinitely():
    y, low, high = [0.0, 1.0], [-math.inf] * 2, [math.inf] * 2
    assert metrics.coverage(y, low, high) == 1
    assert metrics.interval_score(y, low, high, alpha=0.1) == math.inf


@unhurried
@given(seeds)
def test_regression_metrics_ignore_the_order_of_rows_and_shift_of_origin(seed):
    y, mean, var = regression(seed)
    rows = np.random.default_rng(seed).permutation(len(y))
    for metric in (metrics.gaussian_nll, metrics.crps_gaussian):
        want = metric(y, mean, var)
        assert_allclose(metric(y[rows], mean[rows], var[rows]), want)
        assert_allclose(metric(y + 3, mean + 3, var), want)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.rmse([1.0, 2.0], [[1.0], [2.0]]), r"agree: y \(2,\), mean \(2, 1\)"),
        (lambda: metrics.rmse([math.nan], [1.0]), r"y must be a number: y\[0\] = nan"),
        (lambda: metrics.rmse([1.0], [math.inf]), r"mean must be finite: mean\[0\] = inf"),
        (lambda: metrics.rmse([], []), "y is empty"),
        (lambda: metrics.rmse(np.ones((1, 1, 1)), np.ones((1, 1, 1))), "1 or 2 dimension"),
        (
            lambda: metrics.gaussian_nll([1.0], [1.0], [0.0]),
            r"var must be positive: var\[0\] = 0.0",
        ),
        (lambda: metrics.crps_gaussian([1.0], [1.0], [-1.0]), "var must be positive"),
        (
            lambda: metrics.expected_gaussian_nll([1.0], [1.0], [-1.0], 1.0),
            "var must be at least 0",
        ),
        (lambda: metrics.expected_gaussian_nll([1.0], [1.0], [1.0], 0.0), "noise_var must be pos"),
        (
            lambda: metrics.expected_gaussian_nll([1.0], [1.0], [1.0], [1.0, 1.0]),
            r"shapes must agree: noise_var \(2,\), y \(1,\)",
        ),
        (lambda: metrics.expected_nll([0.0]), "log_p must have 2 dimension"),
        (lambda: metrics.coverage([0.0], [1.0], [-1.0]), "lower must be at most upper"),
        (lambda: metrics.coverage([0.0], [1.0], [1.0, 2.0]), r"upper \(2,\)"),
        (lambda: metrics.interval_score([0.0], [-1.0], [1.0], alpha=95.0), "alpha must lie in"),
    ],
)
def test_bad_regression_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# Deferral


@unhurried
@given(seeds)
def test_risk_coverage_equals_a_loop_without_ties(seed):
    rng = np.random.default_rng(seed)
    loss, uncertainty = rng.exponential(size=30), rng.permutation(30)
    curve = metrics.risk_coverage(loss, uncertainty)
    certain_first = sorted(range(30), key=lambda n: uncertainty[n])
    want = [np.mean([loss[n] for n in certain_first[:k]]) for k in range(1, 31)]
    assert_allclose(curve.risk, want)
    assert_allclose(curve.coverage, [k / 30 for k in range(1, 31)])
    assert_allclose(metrics.aurc(loss, uncertainty), np.mean(want))


def test_ties_give_the_mean_over_all_ways_to_break_them():
    loss, uncertainty = np.array([1.0, 5.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0, 2.0])
    one = metrics.risk_coverage(loss, [0.0, 1.0, 1.1, 2.0]).risk
    other = metrics.risk_coverage(loss, [0.0, 1.1, 1.0, 2.0]).risk
    assert_allclose(metrics.risk_coverage(loss, uncertainty).risk, (one + other) / 2)


@unhurried
@given(scores, seeds)
def test_risk_coverage_ignores_order_and_monotone_transforms(uncertainty, seed):
    rng = np.random.default_rng(seed)
    loss = rng.exponential(size=len(uncertainty))
    rows = rng.permutation(len(loss))
    want = metrics.risk_coverage(loss, uncertainty)
    assert_allclose(metrics.risk_coverage(loss[rows], uncertainty[rows]).risk, want.risk)
    assert_allclose(metrics.risk_coverage(loss, np.exp(uncertainty)).risk, want.risk)
    assert_allclose(want.risk[-1], loss.mean())


@unhurried
@given(seeds)
def test_no_order_has_a_smaller_aurc_than_the_loss_itself(seed):
    rng = np.random.default_rng(seed)
    loss, uncertainty = rng.exponential(size=(2, 20))
    best, worst = metrics.aurc(loss, loss), metrics.aurc(loss, -loss)
    assume(best < worst)
    assert best <= metrics.aurc(loss, uncertainty) <= worst


def test_constant_uncertainty_has_a_flat_curve():
    loss = np.arange(5.0)
    assert_allclose(metrics.risk_coverage(loss, np.zeros(5)).risk, np.full(5, loss.mean()))


def test_bad_deferral_input_is_named():
    with pytest.raises(ValueError, match=r"shapes must agree: loss \(2,\), uncertainty \(1,\)"):
        metrics.risk_coverage([0.0, 1.0], [0.0])
    with pytest.raises(ValueError, match="uncertainty must be a number"):
        metrics.aurc([0.0], [math.nan])


def test_arguments_are_left_alone():
    p, y = predictions()
    before = p.copy()
    metrics.ece(p, y)
    metrics.auroc(p[:, 0], p[:, 1])
    assert_array_equal(p, before)
