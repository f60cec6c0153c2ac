"""Templates: compiled once when a workflow is read, rendered often, and bounded in what they can do.

A template is in a string of the definition. If the whole string is one `{{ expression }}`, its value keeps its type;
otherwise the values become part of a text. There are expressions only: no statements, no calls. This module looks up
every path in an expression (`nodes.a.output.files[0]`) by keys and indexes; Jinja2 evaluates only the operators around
the paths, and most expressions are just a path. Values are data: the result of a template is never read as a template.
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from typing import Any

from jinja2 import StrictUndefined, TemplateError, Undefined, nodes
from jinja2.parser import Parser
from jinja2.visitor import NodeTransformer

from dagmaster.errors import InvalidRequest, place_of
from dagmaster.quantities import shortened
from dagmaster.workflows.meter import Meter, OutOfTime, charge, metered
from dagmaster.workflows.nearest import did_you_mean
from dagmaster.workflows.sandbox import (
    COMPARE,
    FILTERS,
    MISSING,
    REQUIRE_DEFINED,
    SLICE,
    TESTS,
    Environment,
    Refused,
    bounded_text,
    finite,
    fits,
    lookup,
    text_of,
)

__all__ = [
    "Compiled",
    "TemplateContext",
    "TemplateFailed",
    "TemplateInvalid",
    "compile_branch",
    "compile_condition",
    "compile_expression",
    "compile_value",
    "fits",
    "has_template",
]

MAX_SOURCE_BYTES = 8_192
MAX_PARTS = 500
MAX_DEPTH = 40
MAX_FILTERS = 30
MAX_VALUE_DEPTH = 100
_UNITS_OF_TEMPLATE = 400  # the cost of the smallest template
ROOTS = ("inputs", "nodes", "job", "item", "index", "items", "value")

_ENVIRONMENT = Environment()
_COMPARISONS = ("<", ">", "==", "!=", "in ", "in[", "in(", "not in", "is ")


class TemplateInvalid(InvalidRequest):
    """A template that cannot be compiled."""

    default_code = "template.invalid"


class TemplateFailed(InvalidRequest):
    """A template that has no value in this context."""

    default_code = "template.failed"


class TemplateContext:
    """The names that templates can use. A name without a value is undefined."""

    __slots__ = ("names",)

    def __init__(
        self,
        *,
        inputs: Mapping[str, Any] | None = None,
        outputs: Mapping[str, Any] | None = None,
        job: Mapping[str, Any] | None = None,
        item: Any = MISSING,
        index: Any = MISSING,
        items: Any = MISSING,
        value: Any = MISSING,
    ) -> None:
        names = {"item": item, "index": index, "items": items, "value": value}
        self.names: dict[str, Any] = {name: value for name, value in names.items() if value is not MISSING}
        self.names |= {"inputs": _plain(inputs), "nodes": _plain(outputs), "job": _plain(job)}

    def having(self, **names: Any) -> "TemplateContext":
        """This context with additional or replaced names; the other values are shared, not copied."""
        context = object.__new__(TemplateContext)
        context.names = {**self.names, **names}
        return context


def _plain(mapping: Mapping[str, Any] | None) -> dict[str, Any]:
    return mapping if isinstance(mapping, dict) else dict(mapping or {})


_Variables = dict[str, Any]
_Evaluate = Callable[[_Variables], Any]


@dataclass(frozen=True, slots=True)
class VariablePath:
    """A chain of constant keys below one of the names. For a node's output the keys start with the node's id."""

    root: str
    keys: tuple[str | int, ...]
    text: str

    def find(self, names: _Variables) -> Any:
        value = names.get(self.root, MISSING)
        for key in self.keys:
            # Inlined for the common case: a fan-out renders this for each of its children.
            value = value.get(key, MISSING) if type(value) is dict and type(key) is str else lookup(value, key)
        return value

    def evaluate(self, names: _Variables) -> Any:
        value = self.find(names)
        if value is MISSING:
            raise TemplateFailed(f"`{self.text}` is undefined", expression=self.text)
        return value

    def value_or_undefined(self, names: _Variables) -> Any:
        value = self.find(names)
        return StrictUndefined(hint=f"`{self.text}` is undefined") if value is MISSING else value


@dataclass(frozen=True, slots=True)
class Compiled:
    """A value with its templates ready to render. Constant parts are shared between results: do not change them."""

    text: str
    paths: tuple[VariablePath, ...]
    _evaluate: _Evaluate = field(repr=False, compare=False)

    is_cheap: bool = False  # it only looks values up

    def render(self, context: TemplateContext, meter: Meter | None = None) -> Any:
        """The value in this context. Raises OutOfTime when the meter runs out; without a meter, TemplateFailed."""
        if self.is_cheap:
            return self._evaluate(context.names)
        limit = meter or Meter()
        try:
            with metered(limit):
                return self._evaluate(context.names)
        except OutOfTime:
            if meter is not None:
                raise
            raise too_slow(self.text, limit.seconds) from None

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes whose outputs are needed."""
        return frozenset(str(path.keys[0]) for path in self.paths if path.root == "nodes")

    @property
    def inputs(self) -> frozenset[str]:
        return frozenset(str(path.keys[0]) for path in self.paths if path.root == "inputs" and path.keys)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(path.root for path in self.paths)


def too_slow(text: str, seconds: float) -> TemplateFailed:
    subject = f"`{_short(text)}`" if text else "a template"
    return TemplateFailed(
        f"{subject} takes longer than {seconds:g} s of CPU time",
        code="template.too-slow",
        hint="move the work into a handler",
        expression=_short(text),
    )


def has_template(text: str) -> bool:
    return "{{" in text or "{%" in text


def compile_value(value: Any) -> Compiled:
    """Any JSON structure with templates in its strings."""
    part = _value(value, 0)
    return Compiled(value if isinstance(value, str) else "", part.paths, part.evaluate, part.is_cheap)


def compile_expression(text: str) -> Compiled:
    """`{{ expression }}` or the bare expression, usually a path."""
    with _compiling(text):
        part = _expression(_single(text), text)
        return Compiled(text, part.paths, part.evaluate, part.is_cheap)


def compile_condition(text: str) -> Compiled:
    """An expression that renders to true or false; comparisons may stand outside the braces or inside."""
    with _compiling(text):
        part = _expression(_spliced(text), text)
        return Compiled(text, part.paths, _as_boolean(part.evaluate, text))


def compile_branch(text: str) -> Compiled:
    """A comparison without its left side (`< 100`, `== 'dem'`, `in ['a', 'b']`), which is the name `value`."""
    if not text.strip().startswith(_COMPARISONS):
        raise TemplateInvalid(f"`{text}` is not a comparison", hint="begin with <, <=, >, >=, ==, !=, in, not in or is")
    with _compiling(text):
        part = _expression(_spliced(f"value {text}"), text)
        return Compiled(text, part.paths, _as_boolean(part.evaluate, text))


# --- values ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _TemplatePart:
    """How to evaluate a piece, and the paths it follows. A `constant` one is always the same object."""

    evaluate: _Evaluate
    paths: tuple[VariablePath, ...] = ()
    constant: bool = False
    is_cheap: bool = False


def _value(value: Any, depth: int) -> _TemplatePart:
    if depth > MAX_VALUE_DEPTH:
        raise TemplateInvalid("the value is nested too deeply")
    if isinstance(value, str) and has_template(value):
        return _string(value)
    if isinstance(value, dict):
        return _container(value, {key: _value(item, depth + 1) for key, item in value.items()})
    if isinstance(value, list | tuple):
        return _container(list(value), dict(enumerate(_value(item, depth + 1) for item in value)))
    return _TemplatePart(lambda _: value, constant=True, is_cheap=True)


def _container(original: Any, parts: Mapping[Any, _TemplatePart]) -> _TemplatePart:
    """A copy of the original with the rendered parts; the original itself if it has no templates."""
    rendered = tuple((key, part.evaluate) for key, part in parts.items() if not part.constant)
    if not rendered:
        return _TemplatePart(lambda _: original, constant=True, is_cheap=True)

    def evaluate(names: _Variables) -> Any:
        result = original.copy()
        for key, part in rendered:
            result[key] = part(names)
        return result

    return _TemplatePart(evaluate, _paths(parts.values()), is_cheap=all(part.is_cheap for part in parts.values()))


@lru_cache(maxsize=1024)
def _string(text: str) -> _TemplatePart:
    """Cached: a process reads the same workflows again for each check and each command."""
    with _compiling(text):
        pieces = _pieces(text.strip())
        if len(pieces) == 1 and not isinstance(pieces[0], str):
            return _expression(pieces[0], text)
        return _text([piece if isinstance(piece, str) else _expression(piece, text) for piece in _pieces(text)], text)


def _text(pieces: list[str | _TemplatePart], text: str) -> _TemplatePart:
    """Pieces of a text, joined. With `{% raw %}` there may be no expression among them."""
    parts = [piece for piece in pieces if isinstance(piece, _TemplatePart)]
    evaluators: list[str | _Evaluate] = [piece if isinstance(piece, str) else piece.evaluate for piece in pieces]

    def evaluate(names: _Variables) -> str:
        with _rendering(text):
            return bounded_text(
                "".join([piece if isinstance(piece, str) else text_of(piece(names)) for piece in evaluators])
            )

    # The length of a text is checked before the text is created.
    return _TemplatePart(evaluate, _paths(parts), is_cheap=all(part.is_cheap for part in parts))


def _paths(parts: Iterable[_TemplatePart]) -> tuple[VariablePath, ...]:
    return tuple(dict.fromkeys(path for part in parts for path in part.paths))


def _as_boolean(evaluate: _Evaluate, text: str) -> _Evaluate:
    def truth(names: _Variables) -> bool:
        value = evaluate(names)
        if isinstance(value, str):
            # 'false' is a non-empty text and would silently count as true.
            raise TemplateFailed(
                f"`{text}` gives the text {value[:40]!r}, not true or false", hint="compare the text with =="
            )
        return bool(value)

    return truth


# --- parsing ---------------------------------------------------------------------------------------------------------


def _pieces(text: str) -> list[str | nodes.Expr]:
    """The literal texts and the expressions of a template, in order."""
    pieces: list[str | nodes.Expr] = []
    for statement in _ENVIRONMENT.parse(text).body:
        if not isinstance(statement, nodes.Output):
            raise TemplateInvalid("statements are not allowed", hint="use {{ … }}; a choice is {{ a if b else c }}")
        pieces += [node.data if isinstance(node, nodes.TemplateData) else node for node in statement.nodes]
    return pieces


def _bare(text: str) -> nodes.Expr:
    parser = Parser(_ENVIRONMENT, text, state="variable")
    expression: nodes.Expr = parser.parse_expression()
    if not parser.stream.eos:
        raise TemplateInvalid(f"`{_short(text)}` continues where the expression should end")
    return expression


def _single(text: str) -> nodes.Expr:
    if not has_template(text):
        return _bare(text)
    match _pieces(text.strip()):
        case [nodes.Expr() as expression]:
            return expression
        case _:
            raise TemplateInvalid(f"`{_short(text)}` must be one expression", hint="write `{{ … }}` around all of it")


def _spliced(text: str) -> nodes.Expr:
    """One expression of a condition's text, in which each `{{ … }}` stands for its value."""
    if not has_template(text):
        return _bare(text)
    inner: dict[str, nodes.Expr] = {}
    outer = ""
    for piece in _pieces(text):
        if isinstance(piece, str):
            outer += piece
        else:
            inner[f"_{len(inner)}"] = piece
            outer += f" _{len(inner) - 1} "
    splicer = _Splicer(inner)
    expression: nodes.Expr = splicer.visit(_bare(outer))
    if inner.keys() - splicer.used:
        raise TemplateInvalid(
            f"`{_short(text)}` has quotes around {{{{ … }}}}", hint="leave them out: values keep their types"
        )
    return expression


class _Splicer(NodeTransformer):
    def __init__(self, inner: Mapping[str, nodes.Expr]) -> None:
        self.inner = inner
        self.used: set[str] = set()

    def visit_Name(self, node: nodes.Name) -> nodes.Node:  # noqa: N802 - Jinja2 calls it by this name
        self.used.add(node.name)
        return self.inner.get(node.name, node)


def _expression(tree: nodes.Expr, text: str) -> _TemplatePart:
    """A path alone is followed directly; anything else becomes a Jinja2 expression over its paths' values."""
    if (path := _path_of(tree)) is not None:
        return _TemplatePart(path.evaluate, (path,), is_cheap=True)
    rewriter = _Rewriter()
    rewritten = rewriter.visit(tree)
    body = nodes.Template([nodes.Assign(nodes.Name("result", "store"), rewritten, lineno=1)], lineno=1)
    body.set_environment(_ENVIRONMENT)
    template = _ENVIRONMENT.from_string(body)
    variables = tuple((name, path.value_or_undefined) for path, name in rewriter.variables.items())

    def evaluate(names: _Variables) -> Any:
        with _rendering(text):
            charge(_UNITS_OF_TEMPLATE)
            context = template.new_context({name: find(names) for name, find in variables})
            for _ in template.root_render_func(context):
                pass
            value = context.vars["result"]
            return str(value) if isinstance(value, Undefined) else value

    return _TemplatePart(evaluate, tuple(rewriter.variables))


def _path_of(node: nodes.Node) -> VariablePath | None:
    keys: list[str | int] = []
    while not isinstance(node, nodes.Name):
        match node:
            case nodes.Getattr(attr=str() as key) if not key.startswith("_"):
                keys.append(key)
            case nodes.Getitem(arg=nodes.Const(value=str() | int() as key)) if not isinstance(key, bool):
                keys.append(key)
            case nodes.Getitem(arg=nodes.Neg(node=nodes.Const(value=int() as key))) if not isinstance(key, bool):
                keys.append(-key)
            case _:
                return None
        node = node.node
    return _rooted(node.name, tuple(reversed(keys)))


def _rooted(root: str, keys: tuple[str | int, ...]) -> VariablePath:
    text = root + "".join(f".{key}" if isinstance(key, str) and key.isidentifier() else f"[{key!r}]" for key in keys)
    if root not in ROOTS:
        hint = "use `none`" if root == "null" else f"known names are {', '.join(ROOTS[:-1])}; texts need quotes"
        raise TemplateInvalid(f"`{root}` is not known{did_you_mean(root, ROOTS)}", hint=hint)
    if root != "nodes":
        return VariablePath(root, keys, text)
    if len(keys) < 2 or keys[1] != "output" or not isinstance(keys[0], str):
        raise TemplateInvalid(
            f"`{text}` is not a node's output", hint="write nodes.<id>.output, or nodes['<id>'].output"
        )
    return VariablePath(root, (keys[0], *keys[2:]), text)


class _Rewriter(NodeTransformer):
    """Checks that a tree contains only allowed nodes, and replaces each path by a name."""

    def __init__(self) -> None:
        self.variables: dict[VariablePath, str] = {}
        self.parts = self.depth = self.filters = 0

    def visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> Any:
        self.parts, self.depth = self.parts + 1, self.depth + 1
        if self.parts > MAX_PARTS or self.depth > MAX_DEPTH or self.filters > MAX_FILTERS:
            raise TemplateInvalid("the expression is too complex", hint="move the work into a handler")
        path = _path_of(node)
        result = self._variable(path) if path else super().visit(node, *args, **kwargs)
        self.depth -= 1
        return result

    def _variable(self, path: VariablePath) -> nodes.Name:
        return nodes.Name(self.variables.setdefault(path, f"s{len(self.variables)}"), "load")

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        if not isinstance(node, _ALLOWED):
            raise TemplateInvalid(f"{type(node).__name__.lower()} is not allowed in templates")
        return super().generic_visit(node, *args, **kwargs)

    def visit_Call(self, node: nodes.Call) -> nodes.Node:  # noqa: N802
        name = node.node.attr if isinstance(node.node, nodes.Getattr) else getattr(node.node, "name", "this")
        hint = f"use the filter: … | {name}" if name in FILTERS else "filters are allowed: … | length"
        raise TemplateInvalid(f"`{name}(…)`: calls are not allowed in templates", hint=hint)

    def visit_Getattr(self, node: nodes.Getattr) -> nodes.Node:  # noqa: N802
        if node.attr.startswith("_"):
            raise TemplateInvalid(f"`.{node.attr}`: names that start with an underscore are not allowed")
        return self.generic_visit(node)

    def visit_Const(self, node: nodes.Const) -> nodes.Node:  # noqa: N802
        finite(node.value)
        return node

    def visit_Filter(self, node: nodes.Filter) -> nodes.Node:  # noqa: N802
        self.filters += 1
        if node.name not in FILTERS or node.node is None:
            raise TemplateInvalid(f"there is no filter `{node.name}`{did_you_mean(node.name, FILTERS)}")
        _check_arguments(node, FILTERS[node.name])
        return self.generic_visit(node)

    def visit_Test(self, node: nodes.Test) -> nodes.Node:  # noqa: N802
        if node.name not in TESTS:
            raise TemplateInvalid(f"there is no test `{node.name}`{did_you_mean(node.name, TESTS)}")
        _check_arguments(node, TESTS[node.name])
        return self.generic_visit(node)

    def visit_Compare(self, node: nodes.Compare) -> nodes.Node:  # noqa: N802
        """`a < b <= c` is `a < b and b <= c`, each with its work charged."""
        operands = [self.visit(node.expr), *(self.visit(operand.expr) for operand in node.ops)]
        links: list[nodes.Expr] = [
            nodes.Filter(left, COMPARE, [nodes.Const(operand.op), right], [], None, None)
            for operand, left, right in zip(node.ops, operands, operands[1:], strict=False)
        ]
        return reduce(nodes.And, links)

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Node:  # noqa: N802
        """Jinja2 slices without the environment, so `a[1:]` becomes a filter, whose work is charged."""
        if not isinstance(node.arg, nodes.Slice):
            return self.generic_visit(node)
        bounds = (node.arg.start, node.arg.stop, node.arg.step)
        ends = [nodes.Const(None) if bound is None else self.visit(bound) for bound in bounds]
        return nodes.Filter(self.visit(node.node), SLICE, ends, [], None, None)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        """`a ~ b` is `[a, b] | join`, whose size is bounded."""
        items = nodes.List([self.visit(item) for item in node.nodes])
        return nodes.Filter(items, "join", [], [], None, None)

    def visit_Tuple(self, node: nodes.Tuple) -> nodes.Node:  # noqa: N802
        """JSON has lists only."""
        return self.visit_List(nodes.List(node.items))

    def visit_List(self, node: nodes.List) -> nodes.Node:  # noqa: N802
        return nodes.List([_required(self.visit(item)) for item in node.items])

    def visit_Dict(self, node: nodes.Dict) -> nodes.Node:  # noqa: N802
        if not all(isinstance(pair.key, nodes.Const) and isinstance(pair.key.value, str) for pair in node.items):
            raise TemplateInvalid("the keys of an object must be texts in quotes")
        return nodes.Dict([nodes.Pair(pair.key, _required(self.visit(pair.value))) for pair in node.items])


_ALLOWED = (
    *(nodes.Const, nodes.Name, nodes.Getattr, nodes.Getitem, nodes.Slice, nodes.Pair, nodes.Keyword, nodes.Operand),
    *(nodes.CondExpr, nodes.Filter, nodes.Test, nodes.Compare, nodes.BinExpr, nodes.UnaryExpr),
)


def _required(node: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(node, REQUIRE_DEFINED, [], [], None, None)


def _check_arguments(node: nodes.Filter | nodes.Test, function: Callable[..., Any]) -> None:
    if node.dyn_args or node.dyn_kwargs:
        raise TemplateInvalid(f"`{node.name}` cannot take its arguments from a list or an object")
    named = {str(pair.key): pair.value for pair in node.kwargs}
    try:
        inspect.signature(function).bind(None, *node.args, **named)
    except TypeError as error:
        raise TemplateInvalid(f"`{node.name}`: {error}") from None
    if len(named) < len(node.kwargs):
        raise TemplateInvalid(f"`{node.name}`: an argument is given twice")


def _short(text: str) -> str:
    return shortened(text, 120)


@contextmanager
def _compiling(text: str) -> Iterator[None]:
    if len(text.encode()) > MAX_SOURCE_BYTES:
        raise TemplateInvalid(
            f"a template of {len(text):,} characters is too long; at most {MAX_SOURCE_BYTES:,} bytes are allowed"
        )
    try:
        yield
    except TemplateInvalid as error:
        raise TemplateInvalid(
            f"{error.message}, in `{_short(text)}`", hint=error.hint, expression=_short(text)
        ) from None
    except (TemplateError, Refused, ValueError, RecursionError, SyntaxError, MemoryError) as error:
        # Python's own parser gives up on deep nesting with one of the last two.
        deep = isinstance(error, RecursionError | SyntaxError | MemoryError)
        reason = "it is nested too deeply" if deep else str(error)
        raise TemplateInvalid(f"`{_short(text)}` is not valid: {reason}", expression=_short(text)) from None


@contextmanager
def _rendering(text: str) -> Iterator[None]:
    try:
        yield
    except (TemplateError, Refused, TypeError, ValueError, ArithmeticError, LookupError, RecursionError) as error:
        raise TemplateFailed(f"`{_short(text)}` failed: {error}", expression=_short(text)) from None
    except (InvalidRequest, OutOfTime):
        raise
    except Exception as error:  # a bug of this software: the node fails with it, so that the job does not hang
        message = f"`{_short(text)}` failed unexpectedly: {type(error).__qualname__}: {error} ({place_of(error)})"
        raise TemplateFailed(message, expression=_short(text)) from error
