"""All methods on one data set: `due compare`."""

from due.compare.run import Comparison, compare
from due.compare.tasks import DATA

__all__ = ["DATA", "Comparison", "compare"]
