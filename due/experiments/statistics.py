"""Statistics of trials. Errors have a heavy tail: medians beside means, and paired seeds."""

from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import ttest_1samp, wilcoxon

from due.experiments.deferral import PERCENT, at_random, certain_first, curve, oracle
from due.experiments.journal import Json
from due.experiments.trials import DEFERRALS, Result, Trial, true_effects
from due.rows.scale import Floats

Results = Mapping[int, Result]  # of one method on one data set, by seed


def of_method(results: Results) -> Json:
    """One row of the table."""
    return {
        "trials": len(results),
        **{name: spread(rmses(results, name, results)) for name in DEFERRALS},
        "coverage": float(np.mean([result.line["coverage"] for result in results.values()])),
        "cpu_seconds": float(np.median(cpu_seconds(results, results))),
        "cpu_minutes_in_all": float(cpu_seconds(results, results).sum() / 60),
        **{key: _median(results, key) for key in ("fit_seconds", "predict_seconds", "epochs")},
    }


def on_common_seeds(methods: Mapping[str, Results], reference: str) -> Json:
    """All methods on the seeds that all of them have, and their differences to `reference`."""
    seeds = common_seeds(methods.values())
    rows: Json = {}
    for name, results in methods.items() if seeds else ():
        rows[name] = of_method({seed: results[seed] for seed in seeds})
        if reference in methods and name != reference:
            rows[name][f"minus_{reference}"] = minus(results, methods[reference], seeds)
    return {"seeds": seeds, "rows": rows}


def minus(results: Results, reference: Results, seeds: Collection[int]) -> Json:
    """Paired differences to the reference: above zero where the reference has smaller errors."""
    differences: Json = {
        name: paired(rmses(results, name, seeds) - rmses(reference, name, seeds))
        for name in DEFERRALS
    }
    mine, its = (np.median(cpu_seconds(found, seeds)) for found in (results, reference))
    return {"trials": len(seeds), **differences, "times_cpu": float(mine / max(its, 1e-4))}


def deferral_curves(data: str, methods: Mapping[str, Results], reference: str) -> Json:
    """RMSE against the share deferred, mean and median over the common seeds.

    Each method defers by its own uncertainty; the reference also at random and by its true errors.
    """
    seeds = common_seeds(methods.values())
    if not seeds:
        return {"seeds": [], "percent": list(PERCENT), "methods": {}}
    tau = {seed: true_effects(Trial(reference, data, seed)) for seed in seeds}
    curves: Json = {}
    for name, results in methods.items():
        used = {seed: results[seed] for seed in seeds}
        orders = {"uncertainty": {seed: certain_first(r.var) for seed, r in used.items()}}
        if name == reference:
            orders["random"] = {seed: at_random(len(tau[seed]), seed) for seed in seeds}
            orders["oracle"] = {seed: oracle(r.tau_hat, tau[seed]) for seed, r in used.items()}
        curves[name] = {}
        for kind, order in orders.items():
            each = [curve(used[seed].tau_hat, tau[seed], order[seed]) for seed in seeds]
            mean, median = np.mean(each, 0).tolist(), np.median(each, 0).tolist()
            curves[name][kind] = {"mean": mean, "median": median}
    return {"seeds": seeds, "percent": list(PERCENT), "methods": curves}


def common_seeds(methods: Collection[Results]) -> list[int]:
    """Seeds that every method has."""
    return sorted(set.intersection(*(set(results) for results in methods))) if methods else []


def spread(values: ArrayLike) -> Json:
    """Mean, its standard error and median; one value has no standard error."""
    array = np.asarray(values, dtype=float)
    stderr = float(array.std(ddof=1) / len(array) ** 0.5) if len(array) > 1 else None
    return {"mean": float(array.mean()), "stderr": stderr, "median": float(np.median(array))}


def paired(differences: Floats) -> Json:
    """Spread of the differences; two-sided p-values, None where no test applies."""
    testable = len(differences) > 1 and np.ptp(differences) > 0
    return {
        **spread(differences),
        "above_zero": float(np.mean(differences > 0)),
        "t_test_p": float(ttest_1samp(differences, 0).pvalue) if testable else None,
        "wilcoxon_p": float(wilcoxon(differences).pvalue) if testable else None,
    }


def rmses(results: Results, deferral: str, seeds: Collection[int]) -> Floats:
    """RMSE after that deferral, in the order of the seeds."""
    return np.array([results[seed].line[f"rmse_{deferral}"] for seed in seeds])


def cpu_seconds(results: Results, seeds: Collection[int]) -> Floats:
    """Of fit and prediction together, on one core."""
    lines = [results[seed].line for seed in seeds]
    return np.array([line["fit_seconds"] + line["predict_seconds"] for line in lines])


def _median(results: Results, key: str) -> float | None:
    values = [result.line[key] for result in results.values()]
    return None if None in values else float(np.median(values))
