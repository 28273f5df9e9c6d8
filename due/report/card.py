"""The model card: what was measured and what is known, as Markdown. From plain JSON alone."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

WARNING = (
    "A wrong uncertainty does harm: if the model is certain where it errs, decisions are made "
    "automatically that should have been deferred to an expert (the authors' own warning in the "
    "paper). Measure on rows from where the model is used before relying on it, and again when "
    "these rows change."
)
SPECIAL = re.compile(r"([\\`*_{}\[\]<>#!|~&$@]|(?<=www)\.|:(?=//))")
FIRST = re.compile(r"^(\d*)([-+=.)])")  # would begin a list
PREDICTS = {
    "classification": "the class",
    "regression": "the value",
    "effect": "the effect of a treatment on",
}
NAMES = {
    "nll": "NLL",
    "ece": "ECE",
    "rmse": "RMSE",
    "mae": "MAE",
    "crps": "CRPS",
    "r2": "R²",
    "brier": "Brier score",
    "left_out": "rows without a target, left out",
    "new_labels": "rows of a class that training did not have",
    "majority": "share of the largest class",
    "foreign": "share of rows flagged as foreign",
    "random_forest": "random forest:",
}


def card(
    *,
    task: str,
    target: str,
    treatment: str | None = None,
    data: Mapping[str, Any] | None = None,
    rows: Mapping[str, int] | None = None,
    columns: Mapping[str, str] | None = None,
    left_out: Mapping[str, str] | None = None,
    measured: Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    version: str = "",
) -> str:
    r"""The card as text.

    Parameters
    ----------
    task, target, treatment
        What is predicted.
    data
        About the table: "source", "rows" and "odd", sentences on what looked odd.
    rows
        How many were train, validation, calibration and test.
    columns, left_out
        Name → kind of those used, name → reason of the others.
    measured
        Metrics on test rows; numbers, or numbers by name.
    settings
        How the model was made.

    Examples
    --------
    >>> print(card(task="regression", target="a*b").splitlines()[0])
    # Model of a\*b
    """
    data = data or {}
    what = f"{PREDICTS.get(task, 'the column')} {code(target)}"
    by = "" if treatment is None else f" of {code(treatment)}"
    parts = [
        f"# Model of {escaped(target)}",
        f"It predicts {what.replace(' of a treatment', by or ' of a treatment')}, with an "
        "uncertainty for each row, in one forward pass. Method: deterministic uncertainty "
        "estimation (DUE), a Gaussian process on the features of a network that keeps distances.",
        "## Data",
        _list(_data(data, rows or {})),
        _table(["column", "kind"], [[code(k), escaped(v)] for k, v in (columns or {}).items()]),
        _table(["left out", "why"], [[code(k), escaped(v)] for k, v in (left_out or {}).items()]),
        "## Measured",
        _measured(measured or {}),
        "## Known limits",
        _list([*_limits(task, measured or {}), *map(escaped, data.get("odd", []))]),
        "## Settings",
        _table(["setting", "value"], [[code(k), code(v)] for k, v in (settings or {}).items()]),
        f"Written by due {escaped(version)}." if version else "",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def escaped(text: object) -> str:
    r"""Text that Markdown shows as it is: no markup, no HTML, no link, on one line.

    >>> print(escaped("<b>|x|\n# y"))
    \<b\>\|x\| \# y
    """
    return FIRST.sub(r"\1\\\2", SPECIAL.sub(r"\\\1", _one_line(text).strip()))


def code(text: object) -> str:
    """Text as code in a line or in a table; a backtick or a bar in it is replaced by a look-alike.

    >>> code("a|b`c")
    '`a¦bˋc`'
    """
    plain = _one_line(text).replace("`", "ˋ").replace("|", "¦").strip()
    return f"`{plain or ' '}`"


def _one_line(text: object) -> str:
    shown = "".join(c if c.isprintable() else " " for c in str(text))
    return shown if len(shown) <= 200 else shown[:199] + "…"


def _data(data: Mapping[str, Any], rows: Mapping[str, int]) -> list[str]:
    found = []
    if data.get("source"):
        found.append(f"Source: {code(data['source'])}")
    if data.get("rows"):
        found.append(f"{data['rows']:,} rows")
    used = [f"{count:,} {escaped(part)}" for part, count in rows.items() if count]
    if used:
        found.append(f"Divided into {', '.join(used)}")
    return found


def _measured(measured: Mapping[str, Any]) -> str:
    if not measured:
        return "No rows were kept to measure on: nothing is known about its errors."
    on = f" on {measured['rows']:,} rows that had no part in training" if "rows" in measured else ""
    lines = [
        [escaped(_name(name)), _number(value)]
        for name, value in _flat(measured)
        if name not in ("task", "rows")
    ]
    return f"Figures{on}:\n\n{_table(['figure', 'value'], lines)}"


def _flat(nested: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in nested.items():
        if isinstance(value, Mapping):
            found += _flat(value, f"{prefix}{name} ")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            if value == 0 and name in ("left_out", "new_labels"):
                continue
            found.append((f"{prefix}{name}", value))
    return found


def _name(name: str) -> str:
    """As a reader calls it: a share of deferred rows after the name of a risk."""
    words = [NAMES.get(word, word) for part in name.split() for word in _known(part)]
    if words[-1].isdecimal() and len(words) > 1:
        words[-1] = f"of {words[-1]} % of the rows"
    return " ".join(words)


def _known(name: str) -> list[str]:
    return [name] if name in NAMES else name.split("_")


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"


def _limits(task: str, measured: Mapping[str, Any]) -> list[str]:
    found = [
        WARNING,
        "Figures hold for rows from where the measured rows came from. P-values and conformal "
        "intervals hold on average over such rows, not for each group of them.",
    ]
    if task == "effect":
        found.append(
            "True effects are never observed, so nothing was calibrated on them. Effects are "
            "causal only if all that led to the treatment and bears on the outcome is a column."
        )
    if not measured:
        found.append("Nothing was measured.")
    return found


def _list(points: Sequence[str]) -> str:
    return "\n".join(f"- {point}" for point in points)


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    if not rows:
        return ""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
