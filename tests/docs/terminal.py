"""Follow a guide: run its commands, and compare their output with the output that the guide shows."""

import subprocess
import time
from pathlib import Path

from tests.docs.pages import blocks_in

MAX_WAIT_SECONDS = 20


def follow(page: Path, variables: dict[str, str]) -> None:
    """Run all commands of a page. If the shown output appears only after a moment, the last command is repeated."""
    read = last = ""
    for block in blocks_in(page):
        if block.info == "console":
            read, last = run_commands(block.body, variables), block.body.strip().splitlines()[-1]
        elif block.info == "text":
            end = time.monotonic() + MAX_WAIT_SECONDS
            while missing(block.body, read) and "show" in last and time.monotonic() < end:
                time.sleep(0.2)
                read = run_commands(last, variables)
            assert not missing(block.body, read), f"{block}: {read}"


def run_commands(commands: str, variables: dict[str, str]) -> str:
    done = subprocess.run(
        ["bash", "-ec", commands], env=variables, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, f"{commands}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def missing(lines: str, read: str) -> list[str]:
    return [line for line in lines.splitlines() if line not in read]
