"""`TableModel`: what a fit on a table leaves behind, from raw rows to predictions, in a folder."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from due.rows.scale import Floats
from due.storage import StorageError
from due.storage.estimator import load_any
from due.tables.answers import Answers, ask, ood_scores
from due.tables.calibration import Calibration
from due.tables.card import card
from due.tables.checked import check_table
from due.tables.columns import Column
from due.tables.encoder import Frame, TableEncoder, as_frame
from due.tables.foreign import reasons
from due.tables.measure import measure
from due.tables.schema import LeftOut
from due.tables.split import Split
from due.tables.target import CLASSIFICATION, EFFECT, Target, Treatment

VERSION = 1  # of the part of the folder that is ours
FOREIGN = 0.05  # rows with a smaller p-value are explained


@dataclass(frozen=True)
class Schema:
    """Columns of the table: those used, with their kinds, and those left out, with the reason."""

    columns: Sequence[Column]  # each with `.name`, `.kind` and `.features`
    left_out: Sequence[LeftOut]  # each with `.name` and `.reason`
    target: Target
    treatment: Treatment | None

    @property
    def kinds(self) -> dict[str, str]:
        """Name → "numeric", "boolean", "category" or "date"."""
        return {column.name: column.kind for column in self.columns}


@dataclass
class TableModel:
    """A model of a table: predictions with their uncertainty from rows as they are in a file.

    Attributes
    ----------
    task
        "classification", "regression" or "effect".
    schema
        `columns` with their kinds, what was `left_out` and why, `target`, `treatment`.
    encoder
        The fitted `TableEncoder`: rows → numbers.
    estimator
        The fitted DUEClassifier, DUERegressor or DUECATE (or another estimator of ours).
    split
        Which rows were train, validation, calibration and test: `split.parts(frame)` says it of
        each row of the same table, `split.counts` how many there were.
    calibration
        Scores of the calibration rows: they make p-values and widths of intervals.
    measured
        Metrics on the test rows, plain JSON, as `evaluate` gives them; {} without test rows.
    data
        About the table: "source", "rows", "odd" (sentences on what looked odd).
    settings
        How the fit was called, plain JSON.
    evidence
        What `due report` shows of the test rows, plain JSON, without their cells.
    history
        Of the training: "loss", "validation", "seconds", … per epoch, as `estimator.history_`.
    """

    target: Target
    treatment: Treatment | None
    encoder: TableEncoder
    estimator: Any
    split: Split
    calibration: Calibration
    measured: dict[str, Any] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    evidence: dict[str, Any] = field(default_factory=dict)

    @property
    def task(self) -> str:
        """One of "classification", "regression" or "effect"."""
        return self.target.task

    @property
    def schema(self) -> Schema:
        """Columns and their kinds."""
        encoder = self.encoder
        return Schema(encoder.columns_, encoder.left_out_, self.target, self.treatment)

    @property
    def history(self) -> dict[str, Any]:
        """Of the training."""
        return getattr(self.estimator, "history_", {})

    @property
    def classes(self) -> NDArray[Any]:
        """Labels, in the order of the columns of probabilities."""
        return np.asarray(self.estimator.classes_)

    def encode(self, frame: Frame) -> Floats:
        """Rows of a table as the numbers that the estimator takes."""
        return self.encoder.transform(frame)

    def answers(self, frame: Frame) -> Answers:
        """Named arrays of everything the estimator says, see `due.tables.answers.ask`."""
        return self.answers_to(self.encode(frame))

    def answers_to(self, X: Floats) -> Answers:
        """The same of rows that are encoded already."""
        found = ask(self.estimator, self.task, X)
        return {**found, "ood_pvalue": self.calibration.pvalues(found["ood_score"])}

    def predict(
        self, frame: Frame, *, alpha: float = 0.05, explain: bool = True, echo: bool = True
    ) -> Frame:
        """The table with new columns at its end, in its order; without `echo` these alone.

        Classes: `prediction`, `probability` of it, `probability_…` of each class (up to 10).
        Values: `prediction`, `lower` and `upper` end of the 1 − alpha interval. Effects: `effect`,
        `lower`, `upper`, both outcomes, and `overlap` per arm. Then `uncertainty` (of classes the
        entropy in nats, of values the standard deviation of a new observation, of effects that of
        the effect), `ood_score` in [0, 1], `ood_pvalue`, and `foreign_because`: the columns
        that make a row with a p-value up to 0.05 foreign. Where the table has a column of such a
        name, all new names begin with "due_".
        """
        table = as_frame(frame)
        X = self.encode(table)
        found = self.answers_to(X)
        added = self._columns(found, alpha)
        added |= {name: found[name] for name in ("uncertainty", "ood_score", "ood_pvalue")}
        if explain:
            flagged = np.flatnonzero(found["ood_pvalue"] <= FOREIGN)
            because = np.full(len(table), "", dtype=object)
            because[flagged] = reasons(self, table.iloc[flagged], X[flagged])
            added["foreign_because"] = because
        if set(added) & set(table.columns) and echo:
            added = {f"due_{name}": values for name, values in added.items()}
        new = pd.DataFrame(added, index=table.index)
        return pd.concat([table, new], axis=1) if echo else new

    def ood_scores(self, X: Floats) -> Floats:
        """How foreign encoded rows are."""
        return ood_scores(self.estimator, self.task, X)

    def evaluate(self, frame: Frame) -> dict[str, Any]:
        """Metrics on rows whose target is known, plain JSON."""
        return measure(self, as_frame(frame))

    def oddities(self, frame: Frame) -> dict[str, int]:
        """What is odd in new rows, in words, and in how many of them."""
        found: dict[str, int] = {}
        for column in self.encoder.columns_:
            cells = frame[column.name]
            if n := int(column.strange(cells).sum()):
                found[f"column {column.name!r} holds {column.strangeness}"] = n
            if n := int(column.absent(cells).sum()):
                found[f"column {column.name!r} is missing, which it never was in training"] = n
        return found

    def save(self, folder: str | Path) -> None:
        """Write the model to a folder: `model.safetensors`, `config.json` and `README.md`.

        A process killed at any moment leaves the model that was there, or the new one. The first
        file alone is the model; it has checksums of all three.
        """
        copies = {"README.md": card(self)}
        self.estimator.save(folder, extra={"table": self._to_json()}, copies=copies)

    @classmethod
    def load(cls, folder: str | Path, extractor: Any = None, device: str | None = None) -> Self:
        """The model saved in a folder; one with an extractor of its own needs it again here."""
        estimator, config = load_any(folder, extractor, device)
        ours = config.get("table")
        if not isinstance(ours, dict):
            raise StorageError(
                f"{folder} holds no model of a table; give a folder made by due fit or "
                "due.tables.fit. An estimator alone is loaded by its own class."
            )
        version = ours.get("version")
        if isinstance(version, int) and version > VERSION:
            raise StorageError(
                f"{folder} is of a newer due (tables of version {version}, this one reads up to "
                f"{VERSION}): pip install --upgrade due"
            )
        try:
            check_table(ours)
        except StorageError as error:
            raise StorageError(f"{folder} is no model of ours: {error}") from error
        encoder, treatment = TableEncoder.from_json(ours["encoder"]), ours["treatment"]
        target = Target(**ours["target"])
        if len(encoder.get_feature_names_out()) != estimator.n_features_in_:
            raise StorageError(f"{folder}: its encoder does not fit its estimator")
        if not _fits(estimator, target.task, treatment is not None):
            raise StorageError(
                f"{folder}: {type(estimator).__name__} is no estimator of {target.task}"
            )
        return cls(
            target,
            None if treatment is None else Treatment(**treatment),
            encoder,
            estimator,
            Split(**ours["split"]),
            Calibration(**ours["calibration"]),
            **{name: ours[name] for name in ("measured", "data", "settings")},
            evidence=ours.get("evidence", {}),
        )

    def _columns(self, found: Answers, alpha: float) -> dict[str, NDArray[Any]]:
        mean, std = found["prediction"], found["uncertainty"]
        if self.task == CLASSIFICATION:
            p = found["probabilities"]
            each = {f"probability_{c}": p[:, i] for i, c in enumerate(self.classes)}
            return {
                "prediction": mean,
                "probability": p.max(1),
                **(each if len(each) <= 10 else {}),
            }
        z = self.calibration.width(alpha)
        ends = {"lower": mean - z * std, "upper": mean + z * std}
        if self.task != EFFECT:
            return {"prediction": mean, **ends}
        arms = {
            f"{what}_{arm}": found[key][:, i]
            for what, key in (("outcome", "outcomes"), ("overlap", "overlap"))
            for i, arm in enumerate(("untreated", "treated"))
        }
        return {"effect": mean, **ends, **arms}

    def _to_json(self) -> dict[str, Any]:
        return {
            "version": VERSION,
            "target": self.target.to_json(),
            "treatment": None if self.treatment is None else self.treatment.to_json(),
            "encoder": self.encoder.to_json(),
            "split": self.split.to_json(),
            "calibration": self.calibration.to_json(),
            "measured": self.measured,
            "data": self.data,
            "settings": self.settings,
            "evidence": self.evidence,
        }


def _fits(estimator: Any, task: str, treated: bool) -> bool:
    """Whether the estimator answers the questions of the task."""
    needed = {CLASSIFICATION: "predict_proba", EFFECT: "effect_inference"}.get(task, "moments")
    return hasattr(estimator, needed) and treated == (task == EFFECT)
