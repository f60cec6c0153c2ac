"""The commands of a guide, so that tests run the same commands as readers."""

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

from dagmaster.local.embedded import find_binaries

ROOT = Path(__file__).parents[2]
RECOVERY = ROOT / "docs/guides/recover-from-disaster.md"


def block_with(text: str, guide: Path = RECOVERY) -> str:
    """The only code block of a guide that contains a text."""
    blocks = re.findall(r"^( *)```(?:shell|ini)\n(.*?)^\1```$", guide.read_text(), re.MULTILINE | re.DOTALL)
    (block,) = [block for _, block in blocks if text in block]
    return textwrap.dedent(block)


def run(commands: str, folder: Path, options: dict[str, Any] | None = None, **environment: str) -> str:
    """Run commands in a shell that ends at the first failure. `options` are those of a child process."""
    programs = f"{Path(sys.executable).parent}:{find_binaries()}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", commands],
        env={**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
        **{"cwd": folder, **(options or {})},
    )
    assert done.returncode == 0, done.stdout
    return done.stdout
