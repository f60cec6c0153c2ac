"""A YAML document as plain JSON values, each with the place where it was written.

It is stricter than YAML: no anchors and aliases (a few hundred bytes of them exhaust any memory), no tags, no merge
keys, no second document, no duplicate keys. Plain scalars are JSON's numbers and YAML 1.2's true, false and null: `no`,
`0x1f`, `1_000`, `12:30` and `2024-01-01` stay texts. Size, depth and number of values are limited while parsing.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

from dagmaster.errors import WorkflowProblem

DocumentPath = tuple[str | int, ...]
Place = tuple[int, int]

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORDS = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Characters that YAML forbids, and marks for right-to-left text, which can hide what is written.
_FORBIDDEN = re.compile(
    r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff\u202a-\u202e\u2066-\u2069]"
)


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    max_bytes: int
    max_depth: int
    max_nodes: int


@dataclass(frozen=True, slots=True)
class Document:
    """`places` has the line and column of every value, `keys` those of every key, `texts` the scalars as written."""

    value: Any = None
    places: dict[DocumentPath, Place] = field(default_factory=dict)
    keys: dict[DocumentPath, Place] = field(default_factory=dict)
    texts: dict[DocumentPath, str] = field(default_factory=dict)

    def place(self, path: DocumentPath, *, key: bool = False) -> Place:
        """The place of a value (or of its key); for a missing value, the place where it belongs."""
        if key and path in self.keys:
            return self.keys[path]
        while path and path not in self.places:
            path = path[:-1]
        return self.places.get(path, (0, 0))


class Unreadable(Exception):
    """The text is not a YAML document."""

    def __init__(self, *problems: WorkflowProblem) -> None:
        super().__init__(problems[0].message)
        self.problems = list(problems)


def parse(text: str | bytes, limits: DocumentLimits) -> tuple[Document, list[WorkflowProblem]]:
    """The document, and the problems that did not prevent reading it."""
    source = _decoded(text, limits)
    builder = _Builder(limits)
    try:
        for event in yaml.parse(source, Loader=_LOADER):
            builder.take(event)
    except yaml.MarkedYAMLError as error:
        raise Unreadable(*builder.problems, _syntax(error, source)) from None
    except (yaml.YAMLError, ValueError) as error:
        raise Unreadable(WorkflowProblem(f"this is not YAML: {error}")) from None
    return builder.finish()


def _decoded(text: str | bytes, limits: DocumentLimits) -> str:
    raw = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(raw) > limits.max_bytes:
        raise Unreadable(WorkflowProblem(f"the file has {len(raw):,} bytes; at most {limits.max_bytes:,} are allowed"))
    try:
        source = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line, column = _position(raw[: error.start].decode(errors="replace"))
        raise Unreadable(WorkflowProblem("the file is not UTF-8; save it as UTF-8", line, column)) from None
    if bad := _FORBIDDEN.search(source):
        name = f"U+{ord(bad.group()):04X}"
        raise Unreadable(
            WorkflowProblem(f"the control character {name} is not allowed", *_position(source[: bad.start()]))
        )
    return source


def _position(before: str) -> Place:
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _syntax(error: yaml.MarkedYAMLError, source: str) -> WorkflowProblem:
    mark = error.problem_mark or error.context_mark
    description = ", ".join(part for part in (error.context, error.problem) if part)
    if not mark:
        return WorkflowProblem(f"this is not YAML: {description}", code="workflow.yaml")
    if source.splitlines()[mark.line : mark.line + 1] and "\t" in source.splitlines()[mark.line][: mark.column + 1]:
        description += "; indent with spaces, not tabs"
    return WorkflowProblem(f"this is not YAML: {description}", mark.line + 1, mark.column + 1, code="workflow.yaml")


@dataclass(slots=True)
class _Open:
    """A mapping or sequence under construction. In a mapping, `key` is set while its value is awaited."""

    container: dict[str, Any] | list[Any]
    path: DocumentPath
    key: str | None = None
    skipping: bool = False


class _Builder:
    """Takes the parser's events one by one, so that limits are checked before values are built."""

    def __init__(self, limits: DocumentLimits) -> None:
        self.limits = limits
        self.document = Document(value=[])
        self.problems: list[WorkflowProblem] = []
        self.stack: list[_Open] = []
        self.documents = self.count = 0
        self.fatal = False

    def take(self, event: Any) -> None:
        match event:
            case yaml.DocumentStartEvent():
                self._document(event)
            case yaml.AliasEvent():
                self._alias(event)
            case yaml.ScalarEvent():
                self._check_node_properties(event)
                self._scalar(event)
            case yaml.MappingStartEvent():
                self._check_node_properties(event)
                self._open(event, {})
            case yaml.SequenceStartEvent():
                self._check_node_properties(event)
                self._open(event, [])
            case yaml.MappingEndEvent() | yaml.SequenceEndEvent():
                self.stack.pop()

    def finish(self) -> tuple[Document, list[WorkflowProblem]]:
        if not self.documents or not self.document.places:
            raise Unreadable(WorkflowProblem("the file is empty"))
        if self.fatal:
            raise Unreadable(*self.problems)
        built = self.document
        return Document(built.value[0], built.places, built.keys, built.texts), self.problems

    def _document(self, event: Any) -> None:
        self.documents += 1
        if self.documents > 1:
            message = "a second YAML document begins here; a file can contain only one workflow"
            raise Unreadable(*self.problems, _problem_at(event, message))

    def _alias(self, event: Any) -> None:
        self.fatal = True
        self._problem(event, f"aliases are not allowed (*{event.anchor}); write the value again")
        if self._awaits_key():
            raise Unreadable(*self.problems)
        self._place_value(event, None)

    def _check_node_properties(self, event: Any) -> None:
        if event.anchor:
            self._problem(event, f"anchors are not allowed (&{event.anchor}); write the value where it is needed")
        if event.tag and event.tag != "!":
            self._problem(event, f"tags are not allowed ({event.tag})")

    def _open(self, event: Any, container: dict[str, Any] | list[Any]) -> None:
        if self._awaits_key():
            raise Unreadable(*self.problems, _problem_at(event, "a key must be a plain text, not a list or a mapping"))
        if len(self.stack) >= self.limits.max_depth:
            raise Unreadable(*self.problems, _problem_at(event, f"nested deeper than {self.limits.max_depth} levels"))
        self.stack.append(_Open(container, self._place_value(event, container)))

    def _scalar(self, event: Any) -> None:
        if _FORBIDDEN.search(event.value):
            self._problem(event, "control characters are not allowed, even escaped")
        if self._awaits_key():
            self._key(event)
            return
        path = self._place_value(event, self._scalar_value(event))
        self.document.texts[path] = event.value

    def _awaits_key(self) -> bool:
        return bool(self.stack) and isinstance(self.stack[-1].container, dict) and self.stack[-1].key is None

    def _key(self, event: Any) -> None:
        self._count(event)
        top, key = self.stack[-1], event.value
        top.key = key
        # The first one is used, and the problem names both.
        top.skipping = key in top.container
        if top.skipping:
            line, _ = self.document.keys[(*top.path, key)]
            self._problem(event, f"'{key}' is written twice; it is already in line {line}")
        elif key == "<<" and event.implicit[0]:
            self._problem(event, "merge keys (<<) are not allowed; write the values where they are needed")
        elif not key:
            self._problem(event, "a key is empty")
        if not top.skipping:
            self.document.keys[(*top.path, key)] = _place(event)

    def _place_value(self, event: Any, value: Any) -> DocumentPath:
        self._count(event)
        if not self.stack:
            self.document.value.append(value)
            path: DocumentPath = ()
        else:
            path = self._add_value(self.stack[-1], value)
        self.document.places.setdefault(path, _place(event))
        return path

    @staticmethod
    def _add_value(top: _Open, value: Any) -> DocumentPath:
        if isinstance(top.container, list):
            top.container.append(value)
            return (*top.path, len(top.container) - 1)
        assert top.key is not None
        key, top.key = top.key, None
        if top.skipping:
            # Under a separate path, so that the places of the first one are kept.
            return (*top.path, key, "(again)")
        top.container[key] = value
        return (*top.path, key)

    def _scalar_value(self, event: Any) -> Any:
        text: str = event.value
        if not event.implicit[0]:
            return text
        if text in _WORDS:
            return _WORDS[text]
        return self._number(event, text) if _NUMBER.fullmatch(text) else text

    def _number(self, event: Any, text: str) -> Any:
        if len(text) > 40:
            self._problem(event, "the number has too many digits; write it in quotes to keep it as text")
            return 0
        number = json.loads(text)
        if number in (float("inf"), float("-inf")) or (isinstance(number, int) and not -(2**63) <= number < 2**63):
            self._problem(
                event,
                "the number does not fit into 64 bits (integers are signed); write it in quotes to keep it as text",
            )
            return 0
        return number

    def _count(self, event: Any) -> None:
        self.count += 1
        if self.count > self.limits.max_nodes:
            raise Unreadable(_problem_at(event, f"the file has more than {self.limits.max_nodes:,} values"))

    def _problem(self, event: Any, message: str) -> None:
        self.problems.append(_problem_at(event, message))


def _place(event: Any) -> Place:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _problem_at(event: Any, message: str) -> WorkflowProblem:
    return WorkflowProblem(message, *_place(event), code="workflow.yaml")


def strings(value: Any, path: DocumentPath) -> Iterator[tuple[DocumentPath, str]]:
    """Every text in a value, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from strings(item, (*path, key))
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from strings(item, (*path, index))
