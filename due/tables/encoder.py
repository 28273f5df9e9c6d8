"""`TableEncoder`: a table of any columns as numbers, for scikit-learn's pipelines and for us."""

from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from due.rows.scale import Floats
from due.tables.cells import CONTINENTAL, ENGLISH
from due.tables.columns import Column, column_from_json
from due.tables.names import nearest
from due.tables.schema import LeftOut, look_at

Frame = Any  # of pandas


class TableEncoder(TransformerMixin, BaseEstimator):
    """Numbers, categories, truth values, dates and missing cells as columns of numbers.

    Nothing of the target is used. Identifiers, constant columns and columns of lists are left
    out; `left_out_` says why, `odd_` what else looked odd.

    Parameters
    ----------
    categories
        How many categories of a column get a feature of their own; the others share some.
    keep
        Names of columns to use although they look like identifiers.

    Attributes
    ----------
    columns_
        What was learned of each column that is used, in their order.
    left_out_
        The columns that are not used, with the reason.
    odd_
        What looked odd, in sentences.

    Examples
    --------
    >>> frame = pd.DataFrame({"age": ["31", "", "45"], "city": ["Oslo", "Rome", "Oslo"]})
    >>> encoder = TableEncoder().fit(frame)
    >>> encoder.get_feature_names_out().tolist()[:3]
    ['age', 'age is missing', 'city = Oslo']
    >>> encoder.transform(pd.DataFrame({"age": [50], "city": ["Paris"]})).tolist()
    [[50.0, 0.0, 0.0, 0.0, 1.0]]
    """

    def __init__(self, categories: int = 20, keep: tuple[str, ...] = ()) -> None:
        self.categories, self.keep = categories, keep

    def fit(self, X: Frame, y: Any = None) -> Self:
        """Learn what each column is."""
        frame = as_frame(X)
        likely = CONTINENTAL if frame.attrs.get("decimal") == "," else ENGLISH
        self.columns_: list[Column] = []
        self.left_out_: list[LeftOut] = []
        self.odd_: list[str] = []
        for name, cells in frame.items():
            found = look_at(name, cells, self.categories, likely, name in self.keep)
            self.odd_ += found.odd
            if isinstance(found.column, LeftOut):
                self.left_out_.append(found.column)
            else:
                self.columns_.append(found.column)
        if not self.columns_:
            why = "; ".join(f"{out.name}: {out.reason}" for out in self.left_out_) or "it has none"
            raise ValueError(f"no column of the table can be used: {why}")
        self.feature_names_in_ = np.array(list(map(str, frame.columns)), dtype=object)
        self.n_features_in_ = len(frame.columns)
        return self

    def transform(self, X: Frame) -> Floats:
        """The table as numbers, (N, number of features), in float64."""
        check_is_fitted(self)
        frame = self.check(as_frame(X))
        return np.column_stack([column.encode(frame[column.name]) for column in self.columns_])

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[Any]:
        """Names of the features."""
        check_is_fitted(self)
        return np.array([f for column in self.columns_ for f in column.features], dtype=object)

    def check(self, frame: Frame) -> Frame:
        """The frame, if it has the columns that are needed."""
        gone = [column.name for column in self.columns_ if column.name not in frame.columns]
        if gone:
            others = [name for name in frame.columns if name not in set(self.feature_names_in_)]
            more = f" ({len(gone) - 1} more are missing)" if len(gone) > 1 else ""
            raise ValueError(
                "the model needs the columns it was fitted on, and the table has no column "
                f"{gone[0]!r}{more}{nearest(gone[0], others or frame.columns)}"
            )
        return frame

    def slices(self) -> list[slice]:
        """Which features belong to each column."""
        ends = np.cumsum([0, *(len(column.features) for column in self.columns_)])
        return [slice(a, b) for a, b in zip(ends[:-1], ends[1:], strict=True)]

    def typical(self) -> Floats:
        """Features of a row of ordinary cells."""
        return np.concatenate([np.ravel(column.typical) for column in self.columns_])

    def to_json(self) -> dict[str, Any]:
        """All that was learned, as plain JSON."""
        return {
            "categories": self.categories,
            "keep": list(self.keep),
            "names": self.feature_names_in_.tolist(),
            "columns": [column.to_json() for column in self.columns_],
            "left_out": [[out.name, out.reason] for out in self.left_out_],
            "odd": self.odd_,
        }

    @classmethod
    def from_json(cls, learned: dict[str, Any]) -> Self:
        """The encoder of `to_json`."""
        self = cls(learned["categories"], tuple(learned["keep"]))
        self.columns_ = [column_from_json(column) for column in learned["columns"]]
        self.left_out_ = [LeftOut(*out) for out in learned["left_out"]]
        self.odd_ = list(learned["odd"])
        self.feature_names_in_ = np.array(learned["names"], dtype=object)
        self.n_features_in_ = len(learned["names"])
        return self


def as_frame(X: Any) -> Frame:
    """X as a frame with names of columns as texts, none of them twice."""
    frame = X if isinstance(X, pd.DataFrame) else pd.DataFrame(X).add_prefix("x")
    names = pd.Index(map(str, frame.columns))
    twice = names[names.duplicated()]
    if len(twice):
        raise ValueError(f"two columns are named {twice[0]!r}; give each a name of its own")
    return frame if list(frame.columns) == list(names) else frame.set_axis(names, axis=1)
