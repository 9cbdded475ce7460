"""What the documents say of options, commands and each other is so."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from launcher.cli import app

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *ROOT.glob("docs/*.md")])
BY_NAME = [pytest.param(path, id=path.name) for path in DOCUMENTS]
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]+")
CALL = re.compile(r"`launch ([^`]+)`|^\$? ?(?:scripts/)?launch (.+)$", re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.*)$", re.MULTILINE)


def options_of(command: Any) -> Iterator[str]:
    """The long options of a command and of all that are under it."""
    for parameter in command.params:
        yield from (word for word in parameter.opts if word.startswith("--"))
    for each in getattr(command, "commands", {}).values():
        yield from options_of(each)


@pytest.fixture(scope="module")
def options() -> frozenset[str]:
    return frozenset(options_of(typer.main.get_command(app)))


@pytest.fixture(scope="module")
def commands() -> frozenset[str]:
    group: Any = typer.main.get_command(app)
    return frozenset(group.commands)


def calls_in(document: Path) -> list[str]:
    """The calls of `launch` that a document shows, without the script's own arguments."""
    found = ("".join(each) for each in CALL.findall(document.read_text("utf-8")))
    return [re.split(r" -- |  +|[#·]", call)[0].strip() for call in found]


def test_every_option_is_described(options: frozenset[str]) -> None:
    described = {word for path in DOCUMENTS for word in OPTION.findall(path.read_text("utf-8"))}
    assert sorted(options - described) == [], "describe them in docs/options.md"


@pytest.mark.parametrize("document", BY_NAME)
def test_commands_have_the_options_that_a_document_gives_them(
    document: Path, options: frozenset[str]
) -> None:
    named = {word for call in calls_in(document) for word in OPTION.findall(call)}
    assert sorted(named - options - {"--help"}) == []


@pytest.mark.parametrize("document", BY_NAME)
def test_commands_that_a_document_names_exist(document: Path, commands: frozenset[str]) -> None:
    first = {call.split()[0] for call in calls_in(document) if call}
    assert sorted(word for word in first - commands if re.fullmatch("[a-z]+", word)) == []


@pytest.mark.parametrize("document", BY_NAME)
def test_links_lead_somewhere(document: Path) -> None:
    lost = [link for link in LINK.findall(document.read_text("utf-8")) if not leads(document, link)]
    assert lost == []


def leads(document: Path, link: str) -> bool:
    """Whether a link's file is there, and has its heading; addresses are not visited."""
    if "://" in link:
        return True
    path, _, anchor = link.partition("#")
    target = document.parent / path if path else document
    return target.exists() and (not anchor or anchor in anchors(target))


def anchors(document: Path) -> set[str]:
    """What can stand behind `#` in a link to a document, as GitHub makes it of headings."""
    headings = HEADING.findall(document.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", each.lower()).replace(" ", "-") for each in headings}
