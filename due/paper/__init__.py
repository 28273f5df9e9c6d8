"""Every figure and table of the paper: settings, `run`, `draw`."""

from due.paper import choices, collapse, constraints, fig1, fig2, fig3, fig4, fig7, gap, table3
from due.paper.artefact import Artefact, Options, Outcome, Report, Reproducible, Result, reproduce

ARTEFACTS: dict[str, Reproducible] = {
    "fig1": fig1.ARTEFACT,
    "fig2": fig2.ARTEFACT,
    "fig3": fig3.ARTEFACT,
    "fig4": fig4.ARTEFACT,
    "fig7": fig7.ARTEFACT,
    "gap": gap.ARTEFACT,
    "table3": table3.ARTEFACT,
    "choices": choices.ARTEFACT,
    "collapse": collapse.ARTEFACT,
    "constraints": constraints.ARTEFACT,
}

__all__ = [
    "ARTEFACTS",
    "Artefact",
    "Options",
    "Outcome",
    "Report",
    "Reproducible",
    "Result",
    "reproduce",
]
