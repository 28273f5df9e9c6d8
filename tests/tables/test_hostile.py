"""Model folders from strangers: the part of tables."""

import json

import pytest

from due.storage import StorageError, files
from due.tables import TableModel


@pytest.fixture(scope="module")
def saved(classifier, tmp_path_factory):
    home = tmp_path_factory.mktemp("model")
    classifier.save(home)
    return files.load(home)


CHANGES = {
    "version": ("table.version", "many"),
    "newer": ("table.version", 99),
    "no encoder": ("table.encoder", None),
    "no columns": ("table.encoder.columns", []),
    "other kind": ("table.encoder.columns.0.kind", "__import__"),
    "more": ("table.encoder.columns.0.evil", 1),
    "no number": ("table.encoder.columns.0.median", "1"),
    "own": ("table.encoder.columns.1.own", 10**9),
    "style": ("table.encoder.columns.4.style", "%n" * 99),
    "cuts": ("table.split.cuts", {}),
    "task": ("table.target.task", "effect"),
    "calibration": ("table.calibration.ood", ["a"]),
    "estimator": ("estimator.name", "../../Evil"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_configuration_is_refused_with_a_reason(saved, tmp_path, name):
    config, tensors = saved
    path, value = CHANGES[name]
    changed = json.loads(json.dumps(config))
    *most, last = path.split(".")
    place = changed
    for key in most:
        place = place[int(key) if key.isdigit() else key]
    place[last] = value
    files.save(tmp_path, changed, tensors)
    with pytest.raises(StorageError, match=str(tmp_path)):
        TableModel.load(tmp_path)


def test_columns_that_do_not_fit_the_estimator_are_refused(saved, tmp_path):
    config, tensors = saved
    changed = json.loads(json.dumps(config))
    del changed["table"]["encoder"]["columns"][0]
    files.save(tmp_path, changed, tensors)
    with pytest.raises(StorageError, match="does not fit its estimator"):
        TableModel.load(tmp_path)


def test_an_estimator_alone_is_no_model_of_a_table(classifier, tmp_path):
    classifier.estimator.save(tmp_path)
    with pytest.raises(StorageError, match="no model of a table"):
        TableModel.load(tmp_path)


@pytest.mark.parametrize("damage", ["cut", "bit", "pickle"])
def test_damaged_weights_are_refused(classifier, tmp_path, damage):
    classifier.save(tmp_path)
    file = tmp_path / "model.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "cut":
        data = data[:-100]
    elif damage == "bit":
        data[len(data) // 2] ^= 1
    else:
        data = bytearray(b"\x80\x04cos\nsystem\n")
    file.write_bytes(bytes(data))
    with pytest.raises(StorageError, match=str(tmp_path)):
        TableModel.load(tmp_path)


def test_a_changed_card_is_noticed(classifier, tmp_path):
    from due.storage import altered

    classifier.save(tmp_path)
    (tmp_path / "README.md").write_text("the best model")
    assert altered(tmp_path) == ["README.md"]
    TableModel.load(tmp_path)
