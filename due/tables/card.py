"""The model card: `README.md` of a model folder, written from what was measured."""

from typing import Any

import due
from due.report import card as cards


def card(model: Any) -> str:
    """The card of a `TableModel`, in Markdown."""
    return cards.card(
        task=model.task,
        target=model.target.name,
        treatment=None if model.treatment is None else model.treatment.name,
        data=model.data,
        rows=model.split.counts,
        columns=model.schema.kinds,
        left_out={out.name: out.reason for out in model.schema.left_out},
        measured=model.measured,
        settings={k: v for k, v in model.settings.items() if v not in (None, [], "")},
        version=due.__version__,
    )
