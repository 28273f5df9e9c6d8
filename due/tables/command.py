"""The commands as functions of files: what the command line is a thin layer over."""

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from due.storage import StorageError, altered
from due.tables.encoder import Frame
from due.tables.fitting import ESTIMATORS, fit, look
from due.tables.model import FOREIGN, TableModel
from due.tables.names import nearest
from due.tables.reading import chunks, is_parquet, read
from due.tables.split import PARTS
from due.tables.target import EFFECT
from due.tables.writing import escaped, write
from due.training import checkpointing

Json = dict[str, Any]
SPARE = ".fit-"  # begins the name of the checkpoint in a model folder


def fit_file(
    data: str,
    folder: Path,
    target: str,
    *,
    reading: Json,
    estimator: Json,
    command: str = "",
    say: Callable[[str], object] = lambda text: None,
    **how: Any,
) -> TableModel:
    """Fit to a file and save; a fit that was stopped goes on from its last epoch."""
    say(f"reading {data}")
    table = read(data, **reading)
    seed = how.get("seed", 0)
    found = look(table, target, how.get("treatment"), how.get("task"))
    given = {name: value for name, value in estimator.items() if value is not None}
    model = ESTIMATORS[found.target.task](random_state=seed, **given)
    spare = _spare(folder, table, target, how, given)
    if _files(spare):
        say(f"going on with the fit that was stopped ({spare})")
    try:
        with checkpointing(spare):
            fitted = fit(table, target, estimator=model, say=say, **how)
    except StorageError:
        if not _files(spare):
            raise
        say(f"{spare} cannot be read: beginning anew")
        for file in _files(spare):
            file.unlink()
        with checkpointing(spare):
            fitted = fit(table, target, estimator=model, say=say, **how)
    fitted.data["source"] = Path(data).name
    fitted.settings["command"] = command
    fitted.save(folder)
    for old in folder.glob(f"{SPARE}*"):
        with suppress(OSError):
            old.unlink()
    return fitted


def predict_file(
    folder: Path,
    data: str,
    out: str,
    *,
    reading: Json,
    predicting: Json,
    escape: bool = False,
    device: str | None = None,
    effects: bool = False,
) -> Json:
    """Predict a file by chunks; how many rows there were, what was odd, how many were foreign."""
    if out != "-" and Path(out).exists() and Path(data).exists() and Path(out).samefile(data):
        raise ValueError(f"--out {out} is the table itself: give predictions another file")
    model = TableModel.load(folder, device=device)
    if effects and model.task != EFFECT:
        raise ValueError(
            f"{folder} is a model of {model.task}, not of effects: use due predict, or fit with "
            "--treatment"
        )
    found: Json = {"rows": 0, "foreign": None, "odd": {}, "out": out}
    total, parts = 0.0, chunks(data, **reading)
    first = next(parts)

    def predictions() -> Iterator[Frame]:
        nonlocal total
        frame = first
        while frame is not None:
            model.encoder.check(frame)
            new = model.predict(frame, echo=False, **predicting)
            found["rows"] += len(frame)
            if new["ood_pvalue"].notna().any():
                found["foreign"] = (found["foreign"] or 0) + int(
                    (new["ood_pvalue"] <= FOREIGN).sum()
                )
            for sentence, n in model.oddities(frame).items():
                found["odd"][sentence] = found["odd"].get(sentence, 0) + n
            if "effect" in new:
                total += float(new["effect"].sum())
            yield _joined(frame, new, escape, to_csv=not is_parquet(out))
            frame = next(parts, None)

    write(out, predictions(), first.attrs.get("separator", ","))
    if model.task == EFFECT:
        found["average_effect"] = total / found["rows"]
    return found


def evaluate_file(
    folder: Path, data: str, part: str = "all", *, reading: Json, device: str | None = None
) -> Json:
    """Metrics of the rows of one part of a file, or of all of them."""
    if part not in ("all", *PARTS):
        raise ValueError(f"--part {part!r} is not one of all, {', '.join(PARTS)}")
    model = TableModel.load(folder, device=device)
    table = read(data, **reading)
    needed = [model.target.name, *([] if model.treatment is None else [model.treatment.name])]
    for name in needed:
        if name not in table.columns:
            raise ValueError(
                f"{data} has no column {name!r}{nearest(name, table.columns)}; without it there is "
                "nothing to compare predictions with"
            )
    if part != "all":
        gone = [name for name in model.split.columns if name not in table.columns]
        if gone:
            raise ValueError(
                f"{data} is not the table of the fit: it has no column {gone[0]!r}; use --part all"
            )
        table = table[model.split.parts(table) == part]
        if not len(table):
            raise ValueError(f"no row of {data} is of part {part!r}")
    return model.evaluate(table)


def describe(folder: Path) -> tuple[Json, TableModel]:
    """What a folder holds, as JSON, and the model."""
    model = TableModel.load(folder)
    schema = model.schema
    found = {
        "task": model.task,
        "target": schema.target.name,
        "treatment": None if schema.treatment is None else schema.treatment.name,
        "columns": schema.kinds,
        "left_out": {out.name: out.reason for out in schema.left_out},
        "rows": model.split.counts,
        "estimator": type(model.estimator).__name__,
        "measured": model.measured,
        "data": model.data,
        "settings": model.settings,
        "altered": altered(folder),
    }
    return found, model


def _files(spare: Path) -> list[Path]:
    """The checkpoints of a fit: one per network that it trains."""
    return list(spare.parent.glob(f"{spare.name}.*"))


def _joined(frame: Frame, new: Frame, escape: bool, to_csv: bool) -> Frame:
    """Columns of the input, then ours; ours begin with due_ where a name is taken."""
    if set(new.columns) & set(frame.columns):
        new = new.add_prefix("due_")
    if to_csv:
        new = escaped(new)
        frame = escaped(frame) if escape else frame
    return pd.concat([frame, new], axis=1)


def _spare(folder: Path, table: Frame, target: str, how: Json, given: Json) -> Path:
    """The checkpoint of this fit: of other rows or settings it would have another name."""
    rows = pd.util.hash_pandas_object(table.astype(str), index=False).to_numpy(np.uint64)
    settings = {name: str(value) for name, value in {**how, **given, "target": target}.items()}
    whole = rows.tobytes() + json.dumps(settings, sort_keys=True).encode()
    return folder / f"{SPARE}{hashlib.sha256(whole).hexdigest()[:16]}.checkpoint"
