"""Which settings decide the widths of Figure 1: SNGP's length scale, and what widens DUE's gap.

Everything is Figure 1's but one setting at a time, and the larger set has 100 thousand rows. SNGP
sees features of length √J through a LayerNorm, so that its length scales compare with that.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from due.experiments.artefact import Artefact, Result
from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE, cosines
from due.paper.cosines import Fit, Fitted, Rows, Settings, fit_due, fit_sngp, label


class Variant(NamedTuple):
    """A method with some settings changed."""

    title: str
    fit: Fit
    changes: dict[str, Any]

    def fit_changed(self, settings: Settings, rows: Rows, seed: int) -> Fitted:
        """The method with its changes."""
        return self.fit(replace(settings, **self.changes), rows, seed)


VARIANTS = {
    "sngp-2": Variant("SNGP, l = 2", fit_sngp, {"sngp_lengthscale": 2.0}),
    "sngp-4": Variant("SNGP, l = 4", fit_sngp, {"sngp_lengthscale": 4.0}),
    "sngp": Variant("SNGP, l = mean distance", fit_sngp, {}),
    "sngp-15": Variant("SNGP, l = 15", fit_sngp, {"sngp_lengthscale": 15.0}),
    "sngp-30": Variant("SNGP, l = 30", fit_sngp, {"sngp_lengthscale": 30.0}),
    "due": Variant("DUE", fit_due, {}),
    "due-100": Variant("DUE, M = 100", fit_due, {"M": 100}),
    "due-no-dropout": Variant("DUE, no dropout", fit_due, {"dropout": 0.0}),
}
PRESETS = {
    name: replace(settings, sizes=(settings.sizes[0], min(settings.sizes[-1], 100_000)))
    for name, settings in cosines.PRESETS.items()
}


def run(settings: Settings, seed: int) -> Result:
    """Each variant at both sizes."""
    panels = [(name, variant.fit_changed, i) for name, variant in VARIANTS.items() for i in (0, 1)]
    return Result(cosines.run(settings, seed, panels).numbers, {})


def text(settings: Settings, mean: Json) -> str:
    """A row per variant: latent std in the gap at both sizes and their ratio, far away, error."""
    small, large = map(label, settings.sizes)
    header = ["", "length scale", f"gap, {small}", f"gap, {large}", "ratio"]
    header += [f"far, {large}", f"RMSE, {large}"]
    rows = []
    for name, variant in VARIANTS.items():
        few, many = mean[name][small], mean[name][large]
        values = [many["lengthscale"], few["latent_std_gap"], many["latent_std_gap"]]
        values += [mean[name]["ratio_gap"], many["latent_std_far"], many["rmse_support"]]
        rows.append([variant.title, *(f"{value:.3g}" for value in values)])
    return Table("Latent standard deviations, means over seeds", header, rows).text()


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """The width in the gap at both sizes, a dot per seed."""
    figure = Figure(figsize=(6.5, 3.4), layout="constrained")
    ax = figure.subplots()
    places = np.arange(len(VARIANTS))
    for size, colour in zip(map(label, settings.sizes), ("tab:orange", "tab:blue"), strict=True):
        found = [[result.numbers[name][size] for result in results] for name in VARIANTS]
        widths = [[numbers["latent_std_gap"] for numbers in row] for row in found]
        ax.plot(widths, places, "o", ms=4, color=colour, alpha=0.6)
        ax.plot(np.mean(widths, axis=1), places, "|", ms=14, mew=2, color=colour, label=size)
    ax.set_yticks(places, [variant.title for variant in VARIANTS.values()])
    ax.invert_yaxis()
    ax.set_xlabel(f"latent std on |x| < {cosines.GAP:g}: seeds, and their mean")
    ax.set_xlim(left=0)
    ax.legend(title="rows", frameon=False)
    return figure


ARTEFACT = Artefact(CATALOGUE["gap"].title, PRESETS, run, draw, 3, text)
