"""Printed text is harmless on any terminal, and printing never crashes a command."""

import json
import os
import subprocess
from pathlib import Path
from uuid import UUID

import pytest

from dagmaster.cli.command import as_json
from dagmaster.cli.printable import ascii_json
from dagmaster.client.escaping import escaped
from dagmaster.client.models.base import read
from dagmaster.client.models.jobs import JobSummary
from dagmaster.quantities import counted
from tests.cli.processes import COMMAND, environment

pytestmark = pytest.mark.requirement("M3")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("a\u202eb", "a\\u202eb"),
        ("over\rwritten", "over\\x0dwritten"),
        ("two\r\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Grüße, 世界 ✔", "Grüße, 世界 ✔"),
        ("half \udcff", "half \\udcff"),
    ],
)
def test_control_characters_are_escaped(text, shown):
    assert escaped(text) == shown


def test_control_characters_in_responses_are_escaped():
    job = {
        "job_id": str(UUID(int=1)),
        "workflow_id": "\x1b]0;title\x07",
        "status": "failed",
        "created_at": "2026-01-01T00:00:00Z",
    }

    assert read(JobSummary, job).workflow_id == "\\x1b]0;title\\x07"


def test_json_output_has_the_same_value_without_control_characters():
    value = {"text": "\x1b[0m \x9b \u202e \x7f é 😀"}

    text = as_json(value)

    assert not set("\x1b\x9b\u202e\x7f") & set(text)
    assert json.loads(text) == json.loads(ascii_json(text)) == value
    assert ascii_json(text).isascii()


def test_singular_and_plural_are_distinguished():
    assert (counted(1, "job"), counted(0, "job"), counted(2, "retry", "retries")) == ("1 job", "0 jobs", "2 retries")


def run(*arguments: str | bytes, stdout: object = subprocess.PIPE, **extra: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [*COMMAND, *arguments], env=environment(**extra), stdout=stdout, stderr=subprocess.PIPE, timeout=30, check=False
    )


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_characters_that_an_encoding_lacks_are_replaced_by_similar_ones(tmp_path, encoding):
    file = tmp_path / "w.yaml"
    file.write_text("workflow_id: '…✔é'\n")

    result = run("workflows", "validate", str(file), PYTHONIOENCODING=encoding)
    as_data = run("workflows", "validate", str(file), "--json", PYTHONIOENCODING=encoding)

    assert result.returncode == as_data.returncode == 2
    assert b"...+" in result.stdout
    assert "…✔é" in json.loads(as_data.stdout)["files"][0]["message"]


@pytest.mark.parametrize("arguments", [["--help"], ["workflows", "validate", "/nowhere"], ["completion", "bash"]])
def test_a_full_disk_or_a_closed_output_is_reported(arguments):
    with Path("/dev/full").open("wb") as full:
        no_space = run(*arguments, stdout=full)
    shell = subprocess.run(
        ["/bin/sh", "-c", '"$@" >&-', "sh", *COMMAND, *arguments], env=environment(), capture_output=True, check=False
    )

    assert no_space.returncode == shell.returncode == 5
    assert no_space.stderr == b"error: the output cannot be written: No space left on device\n"
    assert shell.stderr == b"error: the output cannot be written: Bad file descriptor\n"


def test_an_error_that_cannot_be_printed_keeps_the_exit_code():
    done = subprocess.run(
        ["/bin/sh", "-c", '"$@" 2>/dev/full', "sh", *COMMAND, "jobs", "nothing"], env=environment(), check=False
    )

    assert done.returncode == 2


def test_arguments_that_are_not_utf8_are_refused():
    result = run("submit", os.fsencode("h") + b"\xff")

    assert result.returncode == 2
    assert result.stderr == b"error: argument 2 is not UTF-8: h\\udcff\n"
