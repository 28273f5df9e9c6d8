"""A table of strings, as aligned text and as Markdown."""

from collections.abc import Sequence
from typing import NamedTuple


class Table(NamedTuple):
    """The first column holds words, the others numbers."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """Columns aligned by spaces.

        >>> print(Table("T", ["a", "n"], [["one", "1"], ["ten", "10"]]).text())
        T
        <BLANKLINE>
        a     n
        one   1
        ten  10
        """
        lines = [self.header, *self.rows]
        first, *others = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [
            "  ".join([name.ljust(first), *map(str.rjust, numbers, others)]).rstrip()
            for name, *numbers in lines
        ]
        return "\n".join([self.title, "", *aligned])

    def markdown(self) -> str:
        """A heading and a table."""
        rule = [":--", *["--:"] * (len(self.header) - 1)]
        lines = (f"| {' | '.join(cells)} |" for cells in (self.header, rule, *self.rows))
        return "\n".join([f"## {self.title}", "", *lines])
