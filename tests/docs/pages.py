"""The project's pages and the fenced blocks in them."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block. `info` is the text after the opening fence, such as `yaml workflow`."""

    page: str
    line: int
    info: str
    body: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(*infos: str) -> list[Block]:
    """Every block whose info is one of these, in order; all blocks if none is given."""
    return [block for page in pages() for block in blocks_in(page) if not infos or block.info in infos]


def blocks_in(page: Path) -> list[Block]:
    text = page.read_text()
    matches = _FENCE.finditer(text)
    return [Block(name_of(page), text.count("\n", 0, m.start()) + 1, m["info"].strip(), m["body"]) for m in matches]


def prose(page: Path) -> str:
    """The text without its fenced blocks."""
    return _FENCE.sub("", page.read_text())
