"""Rows as a model sees them: checked, in one order, on a common scale, in batches."""

from due.rows.images import Images, crop, crop_and_flip
from due.rows.scale import Floats, Scale
from due.rows.source import Data, Source, Table
from due.rows.study import Study

__all__ = [
    "Data",
    "Floats",
    "Images",
    "Scale",
    "Source",
    "Study",
    "Table",
    "crop",
    "crop_and_flip",
]
