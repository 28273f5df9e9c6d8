"""What is imported, and when: help and version need none of the heavy packages."""

import subprocess
import sys
from importlib import import_module, metadata

import pytest

import due
from due.compare import CLASS_DATA, CLASSIFIER_NAMES, REGRESSOR_NAMES, VALUE_DATA
from due.compare.methods import CLASSIFIERS, REGRESSORS
from due.compare.tasks import DATA
from due.paper import CATALOGUE, TABLE3_METHODS
from due.paper.table3 import METHODS

HEAVY = {"torch", "sklearn", "numpy", "scipy", "matplotlib", "pandas"}
COMMAND = """
import sys
from due.cli import app
sys.argv = ["due", *{arguments!r}]
try:
    app()
except SystemExit as stop:
    assert not stop.code
"""


def imported_by(code):
    """Names of all modules after `code` in a new process."""
    code += '\nprint("modules:", *sys.modules)'
    command = [sys.executable, "-c", f"import sys\n{code}"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["reproduce", "--help"], ["compare", "--help"]]
)
def test_help_and_version_import_nothing_heavy(arguments):
    assert not HEAVY & imported_by(COMMAND.format(arguments=arguments))


def test_a_mistake_in_the_arguments_is_found_before_torch_is_imported():
    code = COMMAND.format(arguments=["reproduce", "fig9"]).replace("not stop.code", "stop.code")
    assert not HEAVY & imported_by(code)


def test_import_due_is_light_and_its_names_arrive_when_used():
    assert not HEAVY & imported_by("import due")
    modules = imported_by("import due\ndue.DUE")
    assert "torch" in modules
    assert not {"matplotlib", "due.paper", "due.compare", "due.experiments"} & modules


def test_every_public_name_is_there_and_no_other():
    for name in due.__all__:
        assert getattr(due, name).__name__ == name
        assert name in dir(due)
    assert due.__version__ == metadata.version("due")
    with pytest.raises(AttributeError, match="module 'due' has no attribute 'nothing'"):
        due.nothing  # noqa: B018
    with pytest.raises(ImportError):
        from due import nothing  # noqa: F401


@pytest.mark.parametrize("name", CATALOGUE)
def test_the_catalogue_agrees_with_the_modules(name):
    artefact = import_module(f"due.paper.{name}").ARTEFACT
    assert artefact.title == CATALOGUE[name].title
    assert tuple(artefact.presets) == CATALOGUE[name].presets


def test_the_names_in_the_help_are_those_of_the_methods_and_data_sets():
    assert tuple(METHODS) == TABLE3_METHODS
    assert tuple(CLASSIFIERS) == CLASSIFIER_NAMES
    assert tuple(REGRESSORS) == REGRESSOR_NAMES
    assert tuple(name for name in DATA if DATA[name].classes) == CLASS_DATA
    assert tuple(name for name in DATA if not DATA[name].classes) == VALUE_DATA
