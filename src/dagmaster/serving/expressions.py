"""Band expressions such as `(b2-b1)/(b2+b1)`: which are allowed.

numexpr evaluates them, and it compiles text. So the text is parsed here first, and only arithmetic on bands passes:
numbers, bands, operators and a few functions of one or three arguments. Every operation has at least one band, so that
nothing is computed while the expression is compiled, where a power of constants could take unlimited time.
"""

import ast
import re

from dagmaster.errors import InvalidRequest

MAX_CHARACTERS = 200
MAX_EXPRESSIONS = 3
_BAND = re.compile(r"b[1-9]\d{0,2}")
_FUNCTIONS = {"sqrt": 1, "exp": 1, "log": 1, "log10": 1, "abs": 1, "sin": 1, "cos": 1, "tan": 1, "where": 3}
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow, ast.BitAnd, ast.BitOr)
_COMPARISONS = (ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Eq, ast.NotEq)
_ALLOWED = "it may have bands (b1), numbers, + - * / **, comparisons, & | ~ and " + ", ".join(_FUNCTIONS)
_CHARACTERS = re.compile(r"[a-z0-9_+\-*/().,<>=!&|~; ]+")


def require_expression(text: str) -> str:
    """Refuse an expression that is not arithmetic on bands. Several expressions are separated by semicolons.

    >>> require_expression("(b2-b1)/(b2+b1)")
    '(b2-b1)/(b2+b1)'
    """
    parts = text.split(";")
    if len(text) > MAX_CHARACTERS or len(parts) > MAX_EXPRESSIONS:
        raise _refused(f"it may have at most {MAX_CHARACTERS} characters and {MAX_EXPRESSIONS} parts")
    if not _CHARACTERS.fullmatch(text):
        raise _refused(_ALLOWED)
    for part in parts:
        try:
            tree = ast.parse(part.strip(), mode="eval")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise _refused("it cannot be parsed") from None
        if not _has_band(tree.body):
            raise _refused("every part must use a band, such as b1")
    return text


def _has_band(node: ast.expr) -> bool:
    """Check a node and all nodes below it. Returns whether one of them is a band."""
    match node:
        case ast.Name(id=name) if _BAND.fullmatch(name):
            return True
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and abs(value) < 1e30:
            return False
        case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
            return _has_band(operand)
        case ast.BinOp(left=left, op=operator, right=right) if isinstance(operator, _OPERATORS):
            return _any_band(left, right)
        case ast.Compare(left=left, ops=[operator], comparators=[right]) if isinstance(operator, _COMPARISONS):
            return _any_band(left, right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if _FUNCTIONS.get(name) == len(arguments):
            return _any_band(*arguments)
    raise _refused(_ALLOWED)


def _any_band(*nodes: ast.expr) -> bool:
    have_bands = [_has_band(node) for node in nodes]  # all are checked
    if not any(have_bands):
        raise _refused("an operation needs a band; compute constants beforehand")
    return True


def _refused(reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"the expression is not allowed: {reason}", code="tiles.bad-expression", hint="for example (b4-b1)/(b4+b1)"
    )
