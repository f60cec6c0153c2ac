"""Links, commands and settings on the pages exist, and decision records have the required form."""

import re
import subprocess
import sys

import pytest

from dagmaster.jobs.states import EventType
from dagmaster.settings import Settings
from tests.docs.pages import ROOT, blocks, name_of, pages, prose

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#{1,6} (.+)$", re.MULTILINE)
_COMMAND = re.compile(r"(?<![\w./-])dagmaster ((?:[a-z][a-z-]*)(?: (?:[a-z][a-z-]*))?)")
_GROUPS = (
    "jobs",
    "workflows",
    "db",
    "queues",
    "workers",
    "orchestrators",
    "dead-letters",
    "janitor",
    "assets",
    "platforms",
)
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))


def anchors(text: str) -> set[str]:
    """The anchors of headings: lower case, without punctuation, dashes for spaces."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in _HEADING.findall(text)}


def broken_links(page, text):
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        if not file.exists() or (anchor and anchor not in anchors(prose(file))):
            yield target


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def commands_in(text: str) -> set[str]:
    """`dagmaster jobs watch …` is the command `jobs watch`, `dagmaster submit echo_test` is `submit`."""
    commands = (match.split(" ") for match in _COMMAND.findall(text))
    return {" ".join(words if words[0] in _GROUPS else words[:1]) for words in commands}


def shown_commands() -> list[str]:
    """The commands in console blocks and between backticks."""
    shown = [block.body for block in blocks("console")]
    shown += [code for page in pages() for code in re.findall(r"`([^`\n]+)`", prose(page))]
    return sorted(set().union(*map(commands_in, shown)))


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_relative_link_has_a_target(page):
    assert list(broken_links(page, prose(page))) == []


def test_a_broken_link_is_detected():
    page = ROOT / "README.md"

    broken = list(
        broken_links(page, "[a](docs/none.md) [b](docs/engine.md#nowhere) [c](https://example.org/x) [d](LICENSE)")
    )

    assert broken == ["docs/none.md", "docs/engine.md#nowhere"]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_make_target_on_a_page_exists(page):
    code = [block.body for block in blocks("console") if block.page == name_of(page)]
    code += re.findall(r"`([^`\n]+)`", prose(page))

    named = {target for text in code for target in re.findall(r"\bmake ([a-z]+)\b", text)}

    assert named <= make_targets()


def test_the_readme_contains_make_demo_and_make_test():
    text = (ROOT / "README.md").read_text()

    assert "`make demo`" in text
    assert "`make test`" in text


@pytest.mark.parametrize("command", shown_commands())
def test_every_command_on_a_page_exists(command):
    arguments = [sys.executable, "-m", "dagmaster", *command.split(), "--help"]

    response = subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert response.returncode == 0, response.stderr


def test_commands_are_found_in_text():
    assert commands_in("dagmaster submit echo_test -p a=b; x $(dagmaster jobs watch abc)") == {"submit", "jobs watch"}


@pytest.mark.parametrize("page", DECISIONS, ids=name_of)
def test_a_decision_has_its_four_parts_and_fits_on_a_page(page):
    text = page.read_text()

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Status", "Context", "Decision", "Consequences"]
    assert text.startswith(f"# {page.name[:4]}. ")
    assert len(text.split()) <= 340


def test_decisions_are_numbered_and_listed():
    index = (ROOT / "docs" / "decisions" / "README.md").read_text()

    assert [int(page.name[:4]) for page in DECISIONS] == list(range(1, len(DECISIONS) + 1))
    assert [target for target in _LINK.findall(index) if target[0].isdigit()] == [page.name for page in DECISIONS]


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_setting_on_a_page_exists(page):
    """Words in capitals with an underscore between backticks are environment variables, except for `others`."""
    others = {"PYTEST_ARGS", "RLIMIT_DATA", "DAGMASTER_URL"}
    known = {field.alias or name.upper() for name, field in Settings.model_fields.items()}

    named = set(re.findall(r"`([A-Z]+_[A-Z_]+)`", prose(page)))

    assert named - others <= known


def test_the_table_of_events_is_complete():
    text = (ROOT / "docs" / "engine.md").read_text()

    rows = [line for line in text.splitlines() if line.startswith(("| `job_", "| `node_"))]

    assert set(re.findall(r"`((?:job|node)_\w+)`", "\n".join(row.split("|")[1] for row in rows))) == set(EventType)
