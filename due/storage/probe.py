"""A model is saved with its answers about a few rows, and loaded only if it gives them again.

This notices what no checksum can: an extractor that is not the one of `fit`, a configuration that
someone edited, a version of a library that computes something else. The rows are made up from the
scale of the inputs, so no row of the data is in the file.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from due.storage.atomic import StorageError
from due.storage.schema import PROBE

ROWS = 3
TOLERANCE = 1e-4  # between processors; relative to the largest answer of its kind
PREFIX = "probe."
QUESTIONS = ("predict_proba", "moments", "potential_outcomes")  # of wrappers and exact GPs


Arrays = dict[str, NDArray[np.float64]]
Form = dict[str, Any]
Proof = tuple[Form, dict[str, Tensor]]


def take(model: Any) -> Proof:
    """The form of an estimator's answers as JSON, and rows with the answers.

    Nothing if it cannot answer: a network may refuse rows that no data set has, such as one that
    takes whole numbers.
    """
    try:
        rows = _rows(model)
        return pack(_form(model), {"rows": rows, **_answers(model, rows)})
    except Exception:  # of a network that is not ours
        return {}, {}


def pack(form: Form, arrays: Arrays) -> Proof:
    """The same as parts of a file; nothing if an answer is not finite."""
    if not all(np.isfinite(array).all() for array in arrays.values()):
        return {}, {}
    tensors = {PREFIX + name: torch.as_tensor(array) for name, array in arrays.items()}
    return {"answers": sorted(arrays), **form}, tensors


def split(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The tensors of the model, and those of the probe by their own names."""
    mine = {name: t for name, t in tensors.items() if not name.startswith(PREFIX)}
    probe = {name.removeprefix(PREFIX): t for name, t in tensors.items() if name not in mine}
    return mine, probe


def compare(model: Any, form: Form, probe: dict[str, Tensor]) -> None:
    """Raise if the estimator answers otherwise than it did."""
    check_form(form, probe)
    if not probe:
        return
    for name, value in _form(model).items():
        if form.get(name) != value:
            raise StorageError(f"its {name}: {form.get(name)!r} when it was saved, not {value!r}")
    rows = probe.pop("rows").numpy()
    check_answers(_answers(model, rows), probe)


def check_form(form: Form, probe: dict[str, Tensor]) -> None:
    """Raise unless the file has the answers that its form names."""
    if form or probe:
        PROBE(form, "probe")
        if sorted(probe) != form["answers"] or "rows" not in probe:
            raise StorageError(f"its answers {form['answers']} are not those in the file")


def check_answers(now: Arrays, was: dict[str, Tensor]) -> None:
    """Raise unless they are the same."""
    if now.keys() != was.keys():
        raise StorageError(f"it was saved with answers {sorted(was)}, and gives {sorted(now)}")
    for name, answer in now.items():
        before = was[name].numpy()
        scale = max(float(np.abs(before).max()), 1e-300)
        if answer.shape != before.shape or not np.abs(answer - before).max() <= TOLERANCE * scale:
            raise StorageError(
                f"it does not answer as it did when it was saved ({name} of made-up rows): was it "
                "given the extractor of `fit`? load(..., verify=False) takes it as it is"
            )


def _form(model: Any) -> Form:
    """What turns numbers into answers: names of classes and columns, and whether y is (N,)."""
    form: Form = {"columns": list(getattr(model, "feature_names_in_", ()))}
    if hasattr(model, "classes_"):
        form["classes"] = [repr(label) for label in model.classes_.tolist()]
    return form | ({"flat": model._flat} if hasattr(model, "_flat") else {})


def _rows(model: Any) -> NDArray[np.float64]:
    while not hasattr(model, "scale_"):  # a wrapper
        model = model._one
    mean, std = model.scale_
    shape = model.row_shape_ if mean.ndim > 1 else mean.shape  # rows [x, t] are asked about as x
    return np.asarray(mean + std * made_up((ROWS, *shape)))


def made_up(shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Always the same standard normal numbers."""
    return np.random.default_rng(0).standard_normal(shape)


def _answers(model: Any, rows: NDArray[np.float64]) -> Arrays:
    """Numbers by name; a predictor gives all of them in one pass."""
    if hasattr(model, "predictor_"):
        with torch.no_grad():
            answer = model.predictor_(torch.as_tensor(rows).to(model.device))._asdict()
        return {name: value.cpu().numpy() for name, value in answer.items() if value is not None}
    questions = [name for name in QUESTIONS if hasattr(model, name)]
    if "potential_outcomes" in questions and getattr(model, "knows_variance", False):
        questions.append("uncertainty")
    return {name: np.asarray(getattr(model, name)(rows)) for name in questions}
