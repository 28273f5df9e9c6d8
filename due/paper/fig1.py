"""Figure 1: DUE and SNGP trained on a thousand and on a million rows of the same distribution.

The claim is a ratio of the latent standard deviations on |x| < 2, a million over a thousand: DUE's
near 1, SNGP's small. The rate is the one the paper prints, 0.01; the notebook's is a preset. What
decides the widths is measured by `gap`, and docs/paper.md has the results.
"""

from functools import partial

from due.experiments.artefact import Artefact
from due.paper import CATALOGUE, cosines
from due.paper.cosines import PRESETS, fit_due, fit_sngp

TITLES = {"due": "DUE", "sngp": "SNGP"}
PANELS = [("due", fit_due, 0), ("due", fit_due, 1), ("sngp", fit_sngp, 0), ("sngp", fit_sngp, 1)]
run = partial(cosines.run, panels=PANELS)
draw = partial(cosines.draw, titles=TITLES)
ARTEFACT = Artefact(CATALOGUE["fig1"].title, PRESETS, run, draw, seeds=3)
