"""Figure 7: an exact GP on a thousand rows, a Deep Ensemble on a thousand and on a million.

The exact GP has an RBF kernel on x itself; beside it stands DUE at a thousand rows in Figure 1.
"""

from collections.abc import Sequence

from matplotlib.figure import Figure

from due.experiments.artefact import Artefact, Result
from due.paper import CATALOGUE, cosines
from due.paper.cosines import PRESETS, Settings, fit_ensemble, fit_exact

TITLES = {"exact": "exact GP", "ensemble": "Deep Ensemble"}


def run(settings: Settings, seed: int) -> Result:
    """The exact GP at the smaller size, the ensemble at both."""
    panels = [("exact", fit_exact, 0), ("ensemble", fit_ensemble, 0), ("ensemble", fit_ensemble, 1)]
    return cosines.run(settings, seed, panels)


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """Exact GP – 1K, Deep Ensemble – 1K, Deep Ensemble – 1M."""
    return cosines.draw(TITLES, results)


ARTEFACT = Artefact(
    CATALOGUE["fig7"].title,
    PRESETS,
    run,
    draw,
    seeds=3,
)
