"""What a page is made of, and how numbers are written on it."""

from dataclasses import dataclass, field
from typing import Any

from due.report.measure import Histogram
from due.report.plots import COLOURS


@dataclass(frozen=True)
class Grid:
    """A table of texts; columns of words may wrap, the others hold numbers."""

    caption: str
    header: list[str]
    rows: list[list[str]]
    words: tuple[int, ...] = (0,)  # which columns hold words


@dataclass(frozen=True)
class Figure:
    """A drawing, the names of its colours, and the numbers behind it."""

    svg: str
    caption: str
    numbers: Grid
    legend: list[str] = field(default_factory=list)  # names, in the order of the colours
    solid: bool = False  # whether lines differ by colour alone

    @property
    def keys(self) -> list[tuple[int, str]]:
        """Number of a colour and its name."""
        return list(enumerate(self.legend[: len(COLOURS)]))


@dataclass(frozen=True)
class Section:
    """One part of the page: what it says in one sentence, then more words, drawings, tables."""

    id: str
    title: str
    message: str
    words: list[str] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    grids: list[Grid] = field(default_factory=list)
    points: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Fact:
    """A number to see first: what it is, its value, and how to read it."""

    name: str
    value: str
    note: str = ""


def percent(share: float, digits: int = 1) -> str:
    r"""A share in percent; its parts stay on one line.

    >>> [percent(share).replace("\u00a0", " ") for share in (0.1234, 0.2, 1.0)]
    ['12.3 %', '20.0 %', '100 %']
    """
    return f"{100 * share:.{0 if share in (0, 1) else digits}f}\u00a0%"


def number(value: float) -> str:
    """Three significant digits, without an exponent where it can be read without one.

    >>> number(0.012345), number(12345.6), number(3e-9)
    ('0.0123', '12,346', '3e-09')
    """
    if value and not 1e-4 <= abs(value) < 1e7:
        return f"{value:.3g}"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{float(f'{value:.3g}'):.10g}"


def count(n: int, thing: str = "row") -> str:
    """A number of things.

    >>> count(1), count(1200, "column")
    ('1 row', '1,200 columns')
    """
    return f"{n:,} {thing}{'' if n == 1 else 's'}"


def plain(value: Any) -> str:
    """A setting as text.

    >>> plain(0), plain(False), plain([1, 0.5]), plain(None)
    ('0', 'no', '1, 0.5', 'chosen by itself')
    """
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(plain, value)) or "none"
    if value is None:
        return "chosen by itself"
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)


def histogram_grid(title: str, found: Histogram, in_percent: bool = False) -> Grid:
    """The numbers behind a histogram."""
    write = percent if in_percent else number
    return Grid(
        f"{title}: share of rows per bin",
        ["from", "to", *found.shares],
        [
            [
                write(float(a)),
                write(float(b)),
                *(percent(float(s[k])) for s in found.shares.values()),
            ]
            for k, (a, b) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True))
        ],
        (),
    )
