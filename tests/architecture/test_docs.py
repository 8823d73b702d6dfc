"""The documentation is true where a test can tell: links lead somewhere, code parses, tables are today's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from accelerate.config.arguments import OLD_SPELLINGS
from docs import generate
from tests.architecture import source

PAGES = [
    *sorted((source.ROOT / "docs").glob("*.md")),
    *sorted(source.ROOT.glob("*.md")),
    source.ROOT / "examples/README.md",
]
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(source.ROOT)))


@pages
def test_links_lead_to_files(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text())
    local = [link for link in links if not re.match(r"[a-z]+:", link)]
    assert [link for link in local if not (page.parent / link).exists()] == []


@pages
def test_python_in_the_pages_parses(page: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        ast.parse(block)


def test_every_page_is_in_the_index() -> None:
    index = (source.ROOT / "docs/index.md").read_text()
    missing = [page.name for page in (source.ROOT / "docs").glob("*.md") if f"({page.name})" not in index]
    assert missing == ["index.md"]


def test_the_tables_of_settings_are_those_of_the_code() -> None:
    assert generate.PAGE.read_text() == generate.page(), "run `python -m docs.generate`"


def test_the_plans_are_those_that_are_committed() -> None:
    assert generate.SHARDED.read_text() == generate.sharded_page(), "run `python -m docs.generate`"


def test_every_old_spelling_is_in_the_migration_table() -> None:
    text = (source.ROOT / "docs/migrating.md").read_text()
    assert [name for name in OLD_SPELLINGS if f"Accelerator({name}=" not in text] == []
