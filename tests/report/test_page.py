"""The page as text: complete, escaped, and free of anything from elsewhere."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

from due.report import card as cards
from due.report.answers import ClassRows, ValueRows
from due.report.evidence import About, Evidence, from_json, to_json
from report.pages import HOSTILE, made

pytest.importorskip("jinja2", reason="needs due[report]")
pytest.importorskip("vl_convert", reason="needs due[report]")
from due.report.page import render  # noqa: E402

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Reader(HTMLParser):
    """Tags in order, attributes, texts outside of style and script, and headings."""

    def __init__(self, html):
        super().__init__()
        self.open, self.tags, self.links, self.headings, self.texts = [], [], [], [], []
        self.handlers, self.ids = [], []
        self.feed(html)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.ids += [value for name, value in attrs if name == "id"]
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.links += [value for name, value in attrs if name in ("href", "src", "xlink:href")]
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)


def test_a_page_is_complete_well_formed_and_escaped(page):
    task, about, evidence = page
    html = render(about, evidence)
    found = Reader(html)
    assert found.open == []
    assert found.headings[0] == 1 and set(found.headings[1:]) == {2}
    assert found.tags.count("script") == found.tags.count("style") == found.tags.count("main") == 1
    assert "img" not in found.tags and found.handlers == []
    assert html.count("<script>") == 1 and "{{" not in html.replace("{{7*7}}", "")
    assert any(HOSTILE in text for text in found.texts)  # shown as it is written
    assert len(found.ids) == len(set(found.ids))
    for name in ("summary", "foreign", "rows", "columns", "training", "settings", "limits"):
        assert name in found.ids
    own = {"effect": {"effects", "overlap"}}.get(task, {"calibration", "deferral"})
    assert own <= set(found.ids)
    assert found.tags.count("figure") == html.count('role="img"') == found.tags.count("figcaption")
    assert found.tags.count("figure") >= 6
    assert len(html) < 600_000


def test_a_page_links_to_itself_alone(page):
    _, about, evidence = page
    html = render(about, evidence)
    links = set(Reader(html).links)
    assert {link for link in links if not link.startswith("#")} == {"data:,"}
    assert all(link[1:] in Reader(html).ids for link in links if link.startswith("#"))
    assert "default-src &#39;none&#39;" in html
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/)", html)


def test_the_page_of_stored_evidence_shows_no_cells():
    about, evidence = made("regression")
    html = render(about, from_json(to_json(evidence)))
    assert "due report MODEL DATA" in html
    assert "due report MODEL DATA" not in render(about, evidence)


@pytest.mark.parametrize("task", ["classification", "regression", "effect"])
def test_rows_without_truth_and_a_model_without_facts_have_a_page(task):
    plain = to_json(made(task)[1])
    for name in ("truth", "treatment", "ood_score", "ood_pvalue", "overlap"):
        plain["rows"].pop(name, None)
    bare = from_json({**plain, "drivers": [], "foreign": {}, "rivals": {}})
    html = render(About("y", task), bare)
    assert Reader(html).open == [] and 'id="calibration"' not in html


def test_the_page_says_when_a_model_is_over_confident():
    about, evidence = made("classification")
    rows = evidence.rows
    assert isinstance(rows, ClassRows) and "over-confident" not in render(about, evidence)
    bold = np.where(rows.probabilities > 0.5, 1 - 1e-6, 1e-6)
    sure = replace(evidence, rows=replace(rows, probabilities=bold))
    assert "It is over-confident. On" in render(about, sure)
    about, evidence = made("regression")
    values = evidence.rows
    assert isinstance(values, ValueRows) and "Intervals are too" not in render(about, evidence)
    narrow = replace(evidence, rows=replace(values, std=values.std / 3))
    assert "Intervals are too narrow. The 90" in render(about, narrow)


def test_one_row_has_a_page():
    rows = made("classification")[1].rows
    assert isinstance(rows, ClassRows)
    html = render(About("y", "classification"), Evidence("one row", rows.take(np.array([0]))))
    assert Reader(html).open == []


def test_names_that_no_drawing_or_file_can_have_are_written_with_a_mark():
    odd = "a\x00b\x1b\ud800\uffff"
    about, evidence = made("regression")
    drivers = [driver._replace(column=odd) for driver in evidence.drivers]
    html = render(replace(about, target=odd), replace(evidence, drivers=drivers))
    assert "a\ufffdb\ufffd\ufffd\ufffd" in html and html.encode()


# The model card


def test_a_card_says_what_was_measured_and_the_warning():
    text = cards.card(
        task="regression",
        target="price",
        data={"source": "houses.csv", "rows": 1200, "odd": ["3 rows without a target"]},
        rows={"train": 800, "validation": 0, "test": 240},
        columns={"age": "numeric"},
        left_out={"id": "it looks like an identifier"},
        measured={
            "task": "regression",
            "rows": 240,
            "rmse": 1.23456,
            "rmse_after_deferral": {"0": 1.23456, "20": 1.0},
        },
        settings={"seed": 0},
        version="0.2",
    )
    assert "1,200 rows" in text and "800 train, 240 test" in text and "validation" not in text
    assert "| RMSE | 1.235 |" in text and "| RMSE after deferral of 20 % of the rows | 1 |" in text
    assert "240 rows that had no part in training" in text
    assert "should have been deferred to an expert" in text
    assert "3 rows without a target" in text and "| `age` | numeric |" in text


def test_a_card_without_measurements_says_so():
    assert "nothing is known about its errors" in cards.card(task="classification", target="y")
    effect = cards.card(task="effect", target="y", treatment="t")
    assert "the effect of `t` on `y`" in effect and "never observed" in effect


@pytest.mark.parametrize(
    "name",
    [
        HOSTILE,
        "a | b",
        "```\n# heading",
        "[link](javascript:alert(1))",
        "![i](http://x)",
        "x\r\n\r\n<b>",
        "`code`",
        "| --- |",
        "<http://x>",
        "&lt;b&gt;",
        "1. a",
        "12) a",
        "- a",
        "+ a",
        "http://example.org",
        "www.example.org",
        "\u202eevil",
    ],
)
def test_hostile_names_stay_text_in_a_card(name):
    """Rendered, a card with such a name has the elements of one with a plain name."""
    markdown = pytest.importorskip("markdown_it", reason="needs markdown-it-py")
    one, other = (markdown_tags(markdown, text_with(given)) for given in ("name", name))
    assert one == other


def text_with(name):
    return cards.card(
        task="effect",
        target=name,
        treatment=name,
        data={"source": name, "rows": 3, "odd": [name]},
        rows={"train": 3},
        columns={name: name},
        left_out={name: name},
        measured={"rows": 3, "rmse": 1.0, name: {"x": 2.0}},
        settings={name: name},
        version=name,
    )


def markdown_tags(markdown, text):
    html = (
        markdown.MarkdownIt("commonmark", {"html": True})
        .enable(["table", "strikethrough"])
        .render(text)
    )
    return Reader(html).tags
