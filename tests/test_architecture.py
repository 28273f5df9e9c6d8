"""How the package is built: no implemented method is overridden, and imports only go down."""

import ast
import importlib
import inspect
from itertools import pairwise
from pathlib import Path

import pytest

import due

ROOT = Path(due.__file__).parent
LAYERS = [  # a package may import from those above it, and from itself
    {"lipschitz", "networks", "metrics", "data"},
    {"gp", "report"},
    {"rows"},
    {"methods"},
    {"predictor", "storage"},
    {"training"},
    {"estimators"},
    {"baselines"},
    {"tables"},
    {"experiments"},
    {"compare", "paper"},
    {"cli"},
]
FORBIDDEN = {"rows": {"gp"}, "methods": {"metrics", "data"}}  # though it is below


def modules():
    """Names of all modules of the package, whether they import or not."""
    paths = (path.relative_to(ROOT.parent).with_suffix("") for path in ROOT.rglob("*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


def source(name):
    path = ROOT.joinpath(*name.split(".")[1:])
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


# No overriding


def classes():
    """All classes of the package, by their name; modules that do not import, by why."""
    found, broken = {}, {}
    for name in modules():
        try:
            module = importlib.import_module(name)
        except Exception as error:  # noqa: BLE001
            broken[name] = f"{type(error).__name__}: {error}"
            continue
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == name:
                found[f"{name}.{kind.__qualname__}"] = kind
    return found, broken


def is_ours(kind):
    return kind.__module__.split(".")[0] == "due" and not getattr(kind, "_is_protocol", False)


def implemented(kind):
    """Names of the methods and properties that this class itself implements."""
    return {
        name
        for name, value in vars(kind).items()
        if (
            inspect.isfunction(value)
            or isinstance(value, classmethod | staticmethod | property)
            or inspect.isfunction(getattr(value, "func", None))
        )
        and not (name.startswith("__") and name.endswith("__"))
        and not getattr(value, "__isabstractmethod__", False)
    }


def overridden(kind):
    """What the class implements although a base of ours, or one it inherits beside it, does."""
    ours = [base for base in kind.__mro__ if is_ours(base)]
    return {
        f"{kind.__module__}.{kind.__qualname__}.{name} overrides {base.__module__}.{base.__name__}"
        for base in ours[1:]
        for name in implemented(kind) & implemented(base)
    }


def test_no_implemented_method_is_overridden():
    found, broken = classes()
    assert len(found) > 50
    problems = sorted(set().union(*(overridden(kind) for kind in found.values())))
    assert not problems, "\n".join(problems)
    if broken:
        pytest.skip(
            "these modules do not import: " + "; ".join(f"{k} ({v})" for k, v in broken.items())
        )


def test_no_two_bases_implement_the_same_method():
    """Of two bases side by side one would hide the other's method without a word."""
    problems = []
    for kind in classes()[0].values():
        homes: dict[str, list[str]] = {}
        for base in filter(is_ours, kind.__mro__):
            for name in implemented(base):
                homes.setdefault(name, []).append(base.__qualname__)
        problems += [
            f"{kind.__module__}.{kind.__qualname__}.{name} is implemented by {', '.join(bases)}"
            for name, bases in homes.items()
            if len(bases) > 1
        ]
    assert not problems, "\n".join(sorted(problems))


def test_the_walk_sees_what_is_overridden():
    class Base:
        def method(self):
            return 1

        @property
        def value(self):
            return 1

    class Child(Base):
        def method(self):
            return 2

        @property
        def value(self):
            return 2

        def other(self):
            return 3

    Base.__module__ = Child.__module__ = "due.somewhere"
    names = {problem.split()[0].rsplit(".", 1)[1] for problem in overridden(Child)}
    assert names == {"method", "value"}


# Imports


def imports(path):
    """Lines of a file that import from the package, and what; also inside functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} is relative"
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "due")


def part_of(name):
    """The part of the package that a name is from; what `due` itself gives is of estimators."""
    part = [*name.split("."), ""][1]
    return part if part and source(f"due.{part}").exists() else "estimators"


def layer(part):
    """How far up a part of the package is; 0 is the ground."""
    return next((depth for depth, parts in enumerate(LAYERS) if part in parts), None)


def allowed(importer, imported):
    if importer == imported:
        return True
    return layer(imported) < layer(importer) and imported not in FORBIDDEN.get(importer, ())


def exists(name):
    """Whether a dotted name is a module, or something in one."""
    return source(name).exists() or source(name.rpartition(".")[0]).exists()


PARTS = sorted({part_of(name) for name in modules() if name != "due"})


@pytest.mark.parametrize("part", PARTS)
def test_imports_only_go_down(part):
    assert layer(part) is not None, f"due.{part} has no layer"
    up, nowhere = [], []
    for name in modules():
        if name == "due" or part_of(name) != part:
            continue
        for line, imported in imports(source(name)):
            place = f"{source(name).relative_to(ROOT.parent)}:{line} imports {imported}"
            if not exists(imported):
                nowhere.append(place)
            elif not allowed(part, part_of(imported)):
                up.append(place)
    assert not up, "\n".join(up)
    if nowhere:  # the tests of those modules fail for it
        pytest.skip("what is imported is not there: " + "; ".join(nowhere))


def test_the_rules_are_those_of_the_layers():
    assert not allowed("rows", "gp") and allowed("methods", "gp") and allowed("methods", "rows")
    assert allowed("methods", "networks") and not allowed("methods", "data")
    assert allowed("storage", "methods") and not allowed("storage", "training")
    assert allowed("training", "storage") and not allowed("gp", "methods")
    assert not allowed("predictor", "storage") and not allowed("storage", "predictor")
    assert all(not allowed(low, high) for a, b in pairwise(LAYERS) for low in a for high in b)
    assert not exists("due.nowhere.thing") and exists("due.gp.FrozenGP") and exists("due.gp.frozen")
