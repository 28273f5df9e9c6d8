"""What the part `table` of a model's configuration may say; the rules are those of storage."""

from typing import Any

from due.storage.atomic import StorageError
from due.storage.schema import (
    Rule,
    anything,
    flag,
    list_of,
    map_of,
    number,
    one_of,
    optional,
    or_none,
    size,
    table,
    text,
    whole,
)
from due.tables.cells import FORMATS
from due.tables.split import PARTS
from due.tables.target import TASKS

SIGN = one_of((".", ",", ""))
COLUMN: dict[str, Rule | optional] = {"kind": text, "name": text, "missing": flag}
COLUMNS = {
    "numeric": table(
        COLUMN
        | {"median": number, "low": number, "high": number, "decimal": SIGN, "thousands": SIGN}
    ),
    "boolean": table(COLUMN),
    "category": table(COLUMN | {"counts": map_of(size), "own": size}),
    "date": table(COLUMN | {"median": number, "style": one_of(FORMATS), "hours": flag}),
}


def column(value: Any, where: str) -> None:
    """A column of one of the kinds."""
    kind = value.get("kind") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in COLUMNS:
        raise StorageError(f"its field {where}.kind is {kind!r}, not one of {', '.join(COLUMNS)}")
    COLUMNS[kind](value, where)
    if kind == "category" and not value["own"] <= len(value["counts"]):
        raise StorageError(f"its field {where}.own is {value['own']}: more than it has categories")


ENCODER = table(
    {
        "categories": size,
        "keep": list_of(text),
        "names": list_of(text),
        "columns": list_of(column),
        "left_out": list_of(list_of(text, 2)),
        "odd": list_of(text),
    }
)
SPLIT = table(
    {
        "columns": list_of(text),
        "seed": whole(0),
        "cuts": map_of(list_of(number, 3)),
        "counts": table(dict.fromkeys(PARTS, whole(0))),
        **dict.fromkeys(("by", "group", "time"), or_none(text)),
        "style": or_none(one_of(FORMATS)),
    }
)
TABLE = table(
    {
        "version": size,
        "target": table(
            {
                "name": text,
                "task": one_of(TASKS),
                "kind": one_of(("text", "whole", "truth", "number")),
                "reason": text,
                "decimal": SIGN,
                "thousands": SIGN,
            }
        ),
        "treatment": or_none(table(dict.fromkeys(("name", "untreated", "treated"), text))),
        "encoder": ENCODER,
        "split": SPLIT,
        "calibration": table({"n": whole(0), "ood": list_of(number), "residuals": list_of(number)}),
        **dict.fromkeys(("measured", "data", "settings"), map_of(anything)),
        "evidence": optional(map_of(anything)),
    }
)


def check_table(part: Any) -> None:
    """Hold the part to the rules, before anything is made of it."""
    TABLE(part, "table")
    if "*" not in part["split"]["cuts"]:
        raise StorageError("its field table.split.cuts.* is missing")
    if not part["encoder"]["columns"]:
        raise StorageError("its field table.encoder.columns is empty")
