"""What the documentation prints is what the commands wrote."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").glob("*.md")])
QUOTE = re.compile(r"\]\((?:\.\./)?(results/[\w.-]+\.txt)\)[^\n]*:\n+```\n(.*?)\n```", re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_table_below_a_link_is_the_linked_file(page):
    for file, block in QUOTE.findall(page.read_text()):
        assert block == (ROOT / file).read_text().rstrip("\n"), f"{page.name} quotes an old {file}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    missing = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert missing == []


def test_the_comparison_is_quoted():
    quoted = {file for file, _ in QUOTE.findall((ROOT / "docs" / "compare.md").read_text())}
    assert quoted >= {"results/compare-digits.txt", "results/compare-moons.txt"}
