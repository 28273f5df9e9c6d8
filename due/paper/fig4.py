"""Figure 4: predicted against true effect with 95 % intervals, DUE and BTARNet on one trial.

The trials are those of Table 3 on IHDP; finished ones in DIR/table3.jsonl are not run again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from matplotlib.figure import Figure

from due.experiments import trials
from due.experiments.artefact import Options, Report, average, heading
from due.experiments.contender import Contender
from due.experiments.deferral import covered, rmse
from due.experiments.files import write_files
from due.experiments.journal import Json
from due.experiments.trials import Result, Trial, true_effects
from due.paper import CATALOGUE
from due.paper.table3 import METHODS, SMOKE, run_trials

PANELS = ("due", "btarnet")


@dataclass(frozen=True)
class Figure4:
    """The first trial is drawn; the intervals that miss are counted over all of them."""

    title: str = CATALOGUE["fig4"].title
    presets: Mapping[str, Mapping[str, Contender]] = field(
        default_factory=lambda: {"default": METHODS, "smoke": SMOKE}
    )

    def reproduce(self, name: str, options: Options) -> Report:
        """Run the trials that are missing, then write json and png."""
        methods = {method: self.presets[options.preset][method] for method in PANELS}
        n = options.seeds or (1 if options.preset == "smoke" else 10)
        journal = run_trials(name, options, methods, ["ihdp"], n)
        found = trials.results(journal, methods)
        seeds = [seed for seed in range(n) if all(t in found for t in _trials(seed))]
        if not seeds:
            trial, error = next(iter(trials.errors(journal, methods).items()))
            raise ValueError(
                f"no seed has both methods: {trial.method} failed on seed {trial.seed} ({error}); "
                "give more --seeds"
            )
        numbers = count(found, seeds)
        report = {
            **heading(name, self.title, options),
            "settings": {method: made.settings() for method, made in methods.items()},
            "seeds": seeds,
            "drawn": seeds[0],
            **numbers,
        }
        figure = draw(methods, found, seeds[0])
        files = write_files(options.out, name, json=report, png=figure)
        return Report(_text(methods, numbers["total"], len(seeds)), files)


def count(results: Mapping[Trial, Result], seeds: Sequence[int]) -> Json:
    """Intervals that miss the true effect, seed by seed and together."""
    each = []
    for seed in seeds:
        found: Json = {"seed": seed}
        for trial in _trials(seed):
            tau_hat, var, _ = results[trial]
            tau = true_effects(trial)
            found[trial.method] = {
                "missed": int((~covered(tau_hat, var, tau)).sum()),
                "of": len(tau),
                "rmse": rmse(tau_hat, tau),
                "mean_width": float(2 * 1.96 * np.sqrt(var).mean()),
            }
        each.append(found)
    total = {}
    for method in PANELS:
        missed, of = (sum(found[method][key] for found in each) for key in ("missed", "of"))
        mean = average([found[method] for found in each])
        counts = {"missed": missed, "of": of, "coverage": 1 - missed / of}
        total[method] = {**counts, "rmse": mean["rmse"], "mean_width": mean["mean_width"]}
    return {"total": total, "each": each}


def draw(methods: Mapping[str, Contender], results: Mapping[Trial, Result], seed: int) -> Figure:
    """Both methods on one trial, on the same axes."""
    figure = Figure(figsize=(9.0, 4.6), layout="constrained")
    axes = figure.subplots(1, len(PANELS), sharex=True, sharey=True)
    for ax, trial in zip(axes, _trials(seed), strict=True):
        (tau_hat, var, _), tau = results[trial], true_effects(trial)
        hit = covered(tau_hat, var, tau)
        ends = tau.min(), tau.max()
        ax.plot(ends, ends, color="0.5", lw=1, label="predicted = true")
        for rows, colour, marker, label in (
            (hit, "#4477aa", "o", "interval contains the true effect"),
            (~hit, "#cc3311", "D", "interval misses it"),
        ):
            style: Json = {"color": colour, "ms": 3.5, "elinewidth": 1, "capsize": 1.5}
            half = 1.96 * np.sqrt(var[rows])
            ax.errorbar(tau[rows], tau_hat[rows], half, fmt=marker, label=label, **style)
        title = f"{methods[trial.method].title}: {(~hit).sum()} of {len(tau)} intervals miss"
        ax.set(title=title, xlabel="true effect")
    axes[0].set_ylabel("predicted effect")
    figure.legend(
        *axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False
    )
    return figure


def _text(methods: Mapping[str, Contender], total: Json, n: int) -> str:
    return "\n".join(
        f"{methods[method].title}: {numbers['missed']} of {numbers['of']} intervals miss the true "
        f"effect over {n} trial{'s' * (n > 1)} (covered "
        f"{numbers['coverage']:.3f}, mean width {numbers['mean_width']:.2f}, "
        f"RMSE {numbers['rmse']:.2f})"
        for method, numbers in total.items()
    )


def _trials(seed: int) -> list[Trial]:
    return [Trial(method, "ihdp", seed) for method in PANELS]


ARTEFACT = Figure4()
