"""Every figure and table of the paper: settings, `run`, `draw`."""

from due.paper import fig2, fig3
from due.paper.artefact import Artefact, Outcome, Result, reproduce

ARTEFACTS: dict[str, Artefact] = {
    "fig2": fig2.ARTEFACT,
    "fig3": fig3.ARTEFACT,
}

__all__ = ["ARTEFACTS", "Artefact", "Outcome", "Result", "reproduce"]
