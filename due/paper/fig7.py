"""Figure 7: an exact GP on a thousand rows, a Deep Ensemble on a thousand and on a million.

The exact GP has an RBF kernel on x itself; beside it stands DUE at a thousand rows in Figure 1.
"""

from functools import partial

from due.experiments.artefact import Artefact
from due.paper import CATALOGUE, cosines
from due.paper.cosines import PRESETS, fit_ensemble, fit_exact

TITLES = {"exact": "exact GP", "ensemble": "Deep Ensemble"}
PANELS = [("exact", fit_exact, 0), ("ensemble", fit_ensemble, 0), ("ensemble", fit_ensemble, 1)]
run = partial(cosines.run, panels=PANELS)
draw = partial(cosines.draw, titles=TITLES)
ARTEFACT = Artefact(CATALOGUE["fig7"].title, PRESETS, run, draw, seeds=3)
