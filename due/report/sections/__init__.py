"""The parts of a page, one file each: what it says in one sentence, and what shows it."""

from due.report.sections.calibration import calibration
from due.report.sections.columns import columns
from due.report.sections.deferral import deferral
from due.report.sections.effects import effects, overlap
from due.report.sections.foreign import foreign
from due.report.sections.making import settings, training
from due.report.sections.rows import rows

__all__ = [
    "calibration",
    "columns",
    "deferral",
    "effects",
    "foreign",
    "overlap",
    "rows",
    "settings",
    "training",
]
