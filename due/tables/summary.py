"""What a fit or an evaluation found, in a few lines of text."""

from typing import Any

from due.tables.target import CLASSIFICATION, EFFECT

Json = dict[str, Any]


def summary(model: Any) -> str:
    """Of a fit: what was learned from what, how good it is, what looked odd."""
    counts = model.split.counts
    rows = ", ".join(f"{n:,} {part}" for part, n in counts.items() if n)
    schema = model.schema
    lines = [
        f"{model.task} of {schema.target.name} from {len(schema.columns)} columns; rows: {rows}",
        *(f"  not used: {out.name}: {out.reason}" for out in schema.left_out),
        *(f"  odd: {sentence}" for sentence in model.data["odd"]),
    ]
    if model.measured:
        lines += ["", evaluation(model.measured)]
    return "\n".join(lines)


def evaluation(found: Json) -> str:
    """Metrics as a small table, beside those of the random forest if there are any."""
    rows = _ROWS[found["task"]]
    forest = found.get("random_forest", {})
    title = (
        f"on {found['rows']:,} rows that it has not seen" if forest else f"{found['rows']:,} rows"
    )
    lines = [f"{title:<44}{'model':>10}{'forest':>10}" if forest else f"{title:<44}{'model':>10}"]
    for label, *path in rows:
        own, other = _value(found, path), _value(forest, path)
        if own is not None:
            lines.append(
                f"  {label:<42}{own:>10.4g}" + ("" if other is None else f"{other:>10.4g}")
            )
    if found.get("new_labels"):
        lines.append(
            f"  {found['new_labels']} rows have labels that training did not have: errors, and "
            "in no other number"
        )
    return "\n".join(lines)


def information(model: Any, altered: list[str]) -> str:
    """Of a folder: what it is, how it was made, how good it was."""
    settings = {name: value for name, value in model.settings.items() if value not in (None, [])}
    changed = [f"changed since it was saved: {name}" for name in altered]
    kinds: dict[str, list[str]] = {}
    for name, kind in model.schema.kinds.items():
        kinds.setdefault(kind, []).append(name)
    return "\n".join(
        [
            summary(model),
            "",
            *(f"{kind}: {', '.join(names)}" for kind, names in kinds.items()),
            "settings: " + ", ".join(f"{name}={value}" for name, value in settings.items()),
            *changed,
        ]
    )


def _value(found: Json, path: list[str]) -> float | None:
    value: Any = found
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _deferred(name: str, words: str) -> list[tuple[str, ...]]:
    return [
        (f"{words}, most uncertain {percent} % deferred", name, percent)
        for percent in ("10", "20", "50")
    ]


_FOREIGN = ("share of foreign rows (p ≤ 0.05)", "foreign")
_ROWS: dict[str, list[tuple[str, ...]]] = {
    CLASSIFICATION: [
        ("accuracy", "accuracy"),
        ("negative log-likelihood", "nll"),
        ("calibration error (ECE)", "ece"),
        ("error", "error_after_deferral", "0"),
        *_deferred("error_after_deferral", "error"),
        _FOREIGN,
    ],
    "regression": [
        ("RMSE", "rmse"),
        ("R²", "r2"),
        ("negative log-likelihood", "nll"),
        ("95 % intervals contain", "coverage"),
        ("mean width of these", "interval_width"),
        *_deferred("rmse_after_deferral", "RMSE"),
        _FOREIGN,
    ],
    EFFECT: [
        ("RMSE of the outcome that was observed", "rmse_of_outcomes"),
        ("average effect", "average_effect"),
        _FOREIGN,
    ],
}
