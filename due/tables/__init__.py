"""Models of tables: `fit` on a DataFrame or a file, predictions with uncertainty, model folders."""

from due.tables.encoder import TableEncoder
from due.tables.fitting import fit
from due.tables.model import Schema, TableModel

__all__ = ["Schema", "TableEncoder", "TableModel", "fit"]
