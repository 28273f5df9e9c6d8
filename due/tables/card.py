"""The model card: `README.md` of a model folder, written from what was measured."""

from typing import Any


def card(model: Any) -> str:
    """The card of a `TableModel`, in Markdown."""
    lines = [
        f"# Model of {model.target.name}",
        "",
        f"Task: {model.task}. Rows: {model.split.counts}.",
        "",
        *(f"- {name}: {value}" for name, value in model.measured.items()),
        "",
        "The uncertainty is that of a model. Where it is wrong, decisions may be taken that should "
        "have been deferred.",
    ]
    return "\n".join(lines) + "\n"
