"""The guide "Write a long-running handler": its handler passes its tests, its numbers are those of the code."""

import re
import subprocess
import sys

from dagmaster.handlers.checkpoints import MAX_BYTES
from dagmaster.settings import Settings
from dagmaster.worker.loop import CANCEL_GRACE_SECONDS
from tests.docs.pages import ROOT, blocks_in
from tests.docs.terminal import follow

PAGE = ROOT / "docs/guides/write-a-long-running-handler.md"


def test_the_handler_of_the_guide_passes_the_tests_of_the_guide(tmp_path):
    files = {info: block.body for block in blocks_in(PAGE) if (info := block.info.partition(" ")[2]).endswith(".py")}
    for name, text in files.items():
        (tmp_path / name).write_text(text)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_archives.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert set(files) == {"archives.py", "test_archives.py"}
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout


def test_the_numbers_of_the_guide_are_those_of_the_code():
    text, defaults = PAGE.read_text(), Settings()

    assert f"`SHUTDOWN_GRACE_SEC` ({defaults.shutdown_grace_sec:g} seconds)" in text
    assert set(re.findall(r"`MAX_LOSSES` \((\d+)\)", text)) == {str(defaults.max_losses)}
    assert f"killed after {CANCEL_GRACE_SECONDS:g} seconds" in text
    assert f"up to {MAX_BYTES // 1024} KB" in text


def test_the_guide_can_be_followed(variables):
    follow(PAGE, variables)
    follow(ROOT / "docs/guides/choose-retries-and-importance.md", variables)
