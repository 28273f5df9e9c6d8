"""What the documentation prints, runs and names is what the package has."""

import ast
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest
import torch

import due

ROOT = Path(__file__).parents[1]
PACKAGE = Path(due.__file__).parent
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
QUOTE = re.compile(r"\]\((?:\.\./)?(results/[\w.-]+\.txt)\)[^\n]*:\n+```\n(.*?)\n```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
PATH = re.compile(r"(?<![\w./-])(?:due|results|benchmarks|examples|tests|tools|docs)/[\w./-]*\w")
NAME = re.compile(r"`(due(?:\.\w+)+)")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


# Tables

QUOTES: list[Any] = [
    pytest.param(page, file, block, id=f"{page.name}: {file}")
    for page in PAGES
    for file, block in QUOTE.findall(page.read_text())
]


@pytest.mark.parametrize(("page", "file", "block"), QUOTES)
def test_a_table_below_a_link_is_the_linked_file(page, file, block):
    assert block == (ROOT / file).read_text().rstrip("\n"), f"{page.name} quotes an old {file}"


def test_a_table_that_differs_from_its_file_is_recognised_as_a_quote():
    text = "`command` → [results/a.txt](../results/a.txt), 3 seeds:\n\n```\nold\nnumbers\n```\n"
    assert QUOTE.findall(text) == [("results/a.txt", "old\nnumbers")]


def test_the_tables_that_the_pages_are_about_are_quoted():
    quoted = {(quote.values[0].name, quote.values[1]) for quote in QUOTES}
    assert quoted >= {
        ("compare.md", "results/compare-digits.txt"),
        ("compare.md", "results/compare-moons.txt"),
        ("compare.md", "results/heads.txt"),
        ("effects.md", "results/coverage.txt"),
        ("foreign.md", "results/table2-cifar10.txt"),
        ("foreign.md", "results/table2-fashion.txt"),
        ("paper.md", "results/effects.txt"),
        ("paper.md", "results/gap.txt"),
        ("paper.md", "results/constraints.txt"),
    }


# Names


@every_page
def test_links_and_paths_lead_somewhere(page):
    text = page.read_text()
    links = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    paths = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    assert links == [] and paths == []


@every_page
def test_names_of_the_package_exist(page):
    assert [name for name in NAME.findall(page.read_text()) if not is_there(name)] == []


def is_there(name):
    """Whether a dotted name is a module, or an attribute of one."""
    module, *attributes = name.split(".")
    found = importlib.import_module(module)
    for attribute in attributes:
        module = f"{module}.{attribute}"
        if not hasattr(found, attribute):
            try:
                importlib.import_module(module)
            except ModuleNotFoundError:
                return False
        found = getattr(found, attribute)
    return True


def test_a_path_and_a_name_that_are_gone_are_recognised():
    assert PATH.findall("`due/model.py` and `python benchmarks/a.py`.") == [
        "due/model.py",
        "benchmarks/a.py",
    ]
    assert NAME.findall("`due.freeze(model)`, `due.gp.frozen`") == ["due.freeze", "due.gp.frozen"]
    assert not is_there("due.freeze") and is_there("due.gp.frozen.FrozenGP")


# Code


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_code_blocks_run_from_top_to_bottom(page, tmp_path, monkeypatch):
    """In one namespace; a number in the comment of an expression is about its value."""
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__docs__"}
    with torch.random.fork_rng():
        for block in BLOCK.findall(page.read_text()):
            for statement, number in statements(block):
                if number is None:
                    exec(statement, names)
                else:
                    value = float(eval(statement, names))
                    assert value == pytest.approx(number, rel=0.25), statement


def statements(block):
    """The statements of a block, with the number in the comment behind an expression."""
    lines = block.splitlines()
    for node in ast.parse(block).body:
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        statement = "\n".join(lines[first - 1 : node.end_lineno])
        comment = statement.rpartition("  # ")[2] if "  # " in statement else ""
        number = re.search(r"\d+\.\d+", comment)
        is_value = isinstance(node, ast.Expr)
        yield statement, float(number[0]) if is_value and number is not None else None


def test_numbers_in_comments_are_read():
    block = "x = 3  # 1.5\nx / 2  # the half, 1.5\nx  # 3 of them"
    assert [number for _, number in statements(block)] == [None, 1.5, None]


# Journeys

JOURNEY = re.compile(r"^### `(\w+)`[^\n]*\n+(.*?)(?=^#|\Z)", re.DOTALL | re.MULTILINE)


def journeys_on_the_page():
    """Name of a call → the lines of its list."""
    text = (ROOT / "docs" / "architecture.md").read_text()
    return {
        name: re.split(r"^\d+\. ", body, flags=re.MULTILINE)[1:]
        for name, body in JOURNEY.findall(text)
    }


def named(line):
    """The files and rooms with which a line begins."""
    head = re.match(r"(?:`[\w./]+`(?:, | and )?)+", line)
    assert head is not None, line
    return {name.rstrip("/") for name in re.findall(r"`([\w./]+)`", head[0])}


@pytest.fixture(scope="module")
def traced():
    # by its path: the standard library has a module of the same name
    spec = importlib.util.spec_from_file_location("due_trace", ROOT / "tools" / "trace.py")
    assert spec is not None and spec.loader is not None
    trace = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(trace)
    return {name: set(trace.trace(call).rooms()) for name, call in trace.journeys().items()}


@pytest.mark.parametrize("name", ["fit", "predict", "effect_interval"])
def test_a_journey_names_the_files_that_the_call_passes(traced, name):
    lines = journeys_on_the_page()[name]
    assert 0 < len(lines) <= 10
    assert set().union(*map(named, lines)) == traced[name]


# English

BANNED = {
    r"\bdoubt": "uncertainty",
    r"\b(?:µs|ms|s|MB|vectors?|iterations?|masks?|networks?|ideas?|steps?|thinned) an? "
    r"(?:row|step|epoch|pass|person|file|block|core|process)\b": "per",
    r"\bbut for\b": "except for",
    r", for (?:it|they|nobody|nothing|there|most)\b": "because",
    r"\bh[oe]lds? (?:the|a \w+ (?:to a \w+ )?of the) truth": "contain(s) the true value",
    r"\bin company\b": "in a batch",
}


def prose(path):
    """The text of a page without fenced blocks, or the docstrings and messages of a module."""
    text = path.read_text()
    if path.suffix == ".md":
        return FENCED.sub(lambda block: "\n" * block[0].count("\n"), text)
    lines = [""] * text.count("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            lines[node.lineno - 1] += node.value.replace("\n", " ")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "path", [*PAGES, *sorted(PACKAGE.rglob("*.py"))], ids=lambda path: str(path.relative_to(ROOT))
)
def test_plain_english(path):
    text = prose(path)
    found = [
        f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]!r}, say {better!r}"
        for pattern, better in BANNED.items()
        for match in re.finditer(pattern, text)
    ]
    assert found == []
