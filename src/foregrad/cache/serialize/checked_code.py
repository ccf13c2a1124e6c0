"""Checked code: the text of a function from a file that nobody has signed, understood and written anew.

Functions in files are written in a small part of Python: a list of statements without loops, definitions or imports.
Here the text is parsed, not run: every statement and expression is looked up in a closed list, and a new text is made
of what was understood. What such a function can do follows from four rules:

1. it calls functions that the file describes, which come from the closed lists of `allowed`, a few of Python's own, and
   the methods below; never a value that it has computed or was given;
2. it reads the attributes below, and of modules of the state what lies in their `__dict__`, so that no property runs;
   of other objects it may ask whether there is anything in it, and for one entry, and nobody gets hold of a `__dict__`;
3. it assigns to variables of its own, to items, and to `.grad`, `.data` and what a context of autograd keeps;
4. it has no name that is not its own, described, or in `BUILTINS`, and runs with no other built-in names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foregrad.cache.serialize.allow_list import refused
from foregrad.core.errors import CorruptArtifact
from foregrad.core.generated import Check, Line

_NAME = re.compile(r"_?[A-Za-z][A-Za-z0-9_]*|_", re.ASCII)
_LONGEST = 8 << 20
_DEEPEST = 64

_FUNCTIONS = frozenset(("all", "len", "map", "max", "min", "type"))
_TYPES = frozenset(("bool", "complex", "dict", "float", "int", "list", "slice", "str", "tuple"))
_ERRORS = frozenset(
    ("AttributeError", "BaseException", "IndexError", "KeyError", "TypeError", "ValueError", "ZeroDivisionError")
)

#: The only built-in names that such a function has.
BUILTINS = _FUNCTIONS | _TYPES | _ERRORS

_METHODS = frozenset(
    (
        "append", "as_strided", "clone", "copy_", "count", "detach", "expand", "get", "item",
        "mark_non_differentiable", "permute", "requires_grad_", "retain_grad", "save_for_backward", "select",
        "set_materialize_grads", "size", "storage_offset", "stride", "t", "transpose", "unbind", "unsqueeze", "view",
    )
)  # fmt: skip
_ATTRIBUTES = frozenset(
    (
        "_base", "arrays", "data", "dims", "grad", "is_leaf", "live", "param_groups", "saved_tensors", "standing",
        "start", "state", "step", "stop", "tensors",
    )
)  # fmt: skip
_ASSIGNED = frozenset(("data", "dims", "grad", "live", "standing"))
_MATH = frozenset(("ceil", "floor", "log2", "pow", "sqrt", "trunc"))
_DTYPES = re.compile(r"(b?float|complex|u?int)[0-9a-z_]*|bool", re.ASCII)

_OPERATORS = (
    ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.BitAnd, ast.BitOr, ast.And, ast.Or,
    ast.Not, ast.USub, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.IsNot, ast.In, ast.NotIn,
)  # fmt: skip
_CONSTANTS = (type(None), bool, int, float, str, bytes, type(...))


@dataclass(frozen=True)
class Described:
    """The names that a file describes for a function: of functions, of modules of the state, of other values; and of
    libraries, of which code reads some names and which are no values."""

    functions: frozenset[str]
    modules: frozenset[str]
    values: frozenset[str]
    libraries: frozenset[str]

    @property
    def all(self) -> frozenset[str]:
        return self.functions | self.modules | self.values | self.libraries


def checked_code(name: str, lines: tuple[Line, ...], described: Described) -> tuple[Line, ...]:
    """The lines of the function `name`, written anew."""
    are_lines = all(map(_is_line, lines))
    length = sum(len(str(line)) for line in lines) if are_lines else 0
    if not _NAME.fullmatch(name) or not are_lines or length > _LONGEST:
        raise CorruptArtifact(f"the lines of a function are none: {name!r:.40}, {length} characters")
    try:
        return tuple(_Function(name, described).lines(lines))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise CorruptArtifact(f"the text of the function {name} cannot be parsed: {error!r:.200}") from None


class _Function:
    """Checks one function, a statement at a time."""

    def __init__(self, name: str, described: Described) -> None:
        self._name = name
        self._described = described
        self._known = described.all
        self._own: set[str] = set()  # variables that it has assigned to so far
        self._depth = 0
        for one in self._known:
            if not _NAME.fullmatch(one) or one in BUILTINS:
                raise CorruptArtifact(f"a function cannot have the name {one!r:.80}")

    def lines(self, lines: Sequence[Line]) -> Iterator[Line]:
        head, *body = lines
        yield self._head(str(head))
        for piece in _statements(body):
            for one in ast.parse("\n".join(str(line)[4:] for line in piece)).body:
                yield from self._statement(one, "    ", piece)

    def _head(self, line: str) -> str:
        definition = ast.parse(f"{line}\n    pass").body[0]
        if not isinstance(definition, ast.FunctionDef) or definition.name != self._name or definition.decorator_list:
            raise refused(f"a text that is no function {self._name}")
        given = definition.args
        if given.posonlyargs or given.kwonlyargs or given.kwarg or given.defaults or definition.returns:
            raise refused("a function with keywords or defaults")
        names = [one.arg for one in given.args]
        stars = [given.vararg.arg] if given.vararg else []
        for one in (*names, *stars):
            self._assign(ast.Name(one, ast.Store()))
        return f"def {self._name}({', '.join([*names, *(f'*{one}' for one in stars)])}):"

    # -- statements -------------------------------------------------------------------------------------

    def _statement(self, one: ast.stmt, indent: str, lines: list[Line]) -> Iterator[Line]:
        if isinstance(one, ast.If) and not one.orelse:
            test = ast.unparse(self._truth(one.test))
            if _is_miss(one) and "MISS" in self._known:
                yield self._check(test, indent, lines[one.lineno - 1])
                return
            yield f"{indent}if {test}:"
            yield from self._block(one.body, indent, lines)
        elif isinstance(one, ast.With) and all(item.optional_vars is None for item in one.items):
            entered = ", ".join(ast.unparse(self._entered(item.context_expr)) for item in one.items)
            yield f"{indent}with {entered}:"
            yield from self._block(one.body, indent, lines)
        elif isinstance(one, ast.Try) and not one.orelse and not one.finalbody:
            yield f"{indent}try:"
            yield from self._block(one.body, indent, lines)
            for handler in one.handlers:
                yield f"{indent}except {self._errors(handler)}:"
                yield from self._block(handler.body, indent, lines)
        else:
            yield f"{indent}{ast.unparse(self._simple(one))}"

    def _block(self, body: list[ast.stmt], indent: str, lines: list[Line]) -> Iterator[Line]:
        for one in body:
            yield from self._statement(one, f"{indent}    ", lines)

    def _simple(self, one: ast.stmt) -> ast.stmt:
        if isinstance(one, ast.Assign):
            value = self._value(one.value)
            return ast.Assign([self._assign(target) for target in one.targets], value, lineno=1)
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Call):
            return ast.Expr(self._value(one.value))
        if isinstance(one, ast.Return) and one.value is not None:
            return ast.Return(self._value(one.value))
        if isinstance(one, ast.Delete) and all(isinstance(target, ast.Name) for target in one.targets):
            return ast.Delete([ast.Name(self._mine(target), ast.Del()) for target in one.targets])
        if isinstance(one, ast.Pass) or (isinstance(one, ast.Raise) and one.exc is None):
            return one
        raise refused(f"a statement of the kind {type(one).__name__}")

    def _entered(self, value: ast.expr) -> ast.expr:
        if not (isinstance(value, ast.Call) and isinstance(value.func, ast.Name)):
            raise refused("a block of an unknown kind")
        return self._value(value)

    def _errors(self, handler: ast.ExceptHandler) -> str:
        kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
        names = [kind.id for kind in kinds if isinstance(kind, ast.Name) and kind.id in _ERRORS]
        if len(names) != len(kinds) or handler.name is not None:
            raise refused("a block that catches other errors")
        return names[0] if len(names) == 1 else f"({', '.join(names)})"

    def _check(self, test: str, indent: str, said: Line) -> Check:
        """A check with what is said when it fails: words, and an expression to look at, which is checked too."""
        if isinstance(said, str):
            return Check(test, indent=indent)
        looked_at = said.looked_at and ast.unparse(self._value(ast.parse(said.looked_at, mode="eval").body))
        return replace(said, condition=test, looked_at=looked_at, indent=indent)

    # -- assignments ------------------------------------------------------------------------------------

    def _assign(self, target: ast.expr) -> ast.expr:
        if isinstance(target, (ast.Tuple, ast.List)):
            return ast.Tuple([self._assign(one) for one in target.elts], ast.Store())
        if isinstance(target, ast.Starred):
            return ast.Starred(self._assign(target.value), ast.Store())
        if isinstance(target, ast.Name):
            if not _NAME.fullmatch(target.id) or target.id in self._known or target.id in BUILTINS:
                raise refused(f"an assignment to {target.id!r:.80}")
            self._own.add(target.id)
            return ast.Name(target.id, ast.Store())
        if isinstance(target, ast.Attribute) and target.attr in _ASSIGNED:
            return ast.Attribute(ast.Name(self._mine(target.value), ast.Load()), target.attr, ast.Store())
        if isinstance(target, ast.Subscript):
            holder = ast.Name(self._mine(target.value), ast.Load())
            return ast.Subscript(holder, self._value(target.slice), ast.Store())
        raise refused(f"an assignment to {ast.unparse(target):.80}")

    def _mine(self, value: ast.expr) -> str:
        """A variable of the function's own, as what is changed."""
        if isinstance(value, ast.Name) and value.id in self._own:
            return value.id
        raise refused(f"a change of {ast.unparse(value):.80}")

    # -- expressions ------------------------------------------------------------------------------------

    def _value(self, value: Any) -> Any:
        """An expression, built anew from what it is understood to be."""
        understood = _EXPRESSIONS.get(type(value))
        if understood is None:
            raise refused(f"an expression of the kind {type(value).__name__}")
        if self._depth == _DEEPEST:
            raise CorruptArtifact(f"an expression is deeper than {_DEEPEST} levels")
        self._depth += 1
        try:
            return understood(self, value)
        finally:
            self._depth -= 1

    def _truth(self, value: ast.expr) -> Any:
        """An expression of which only the truth is asked: of a `__dict__`, whether anything is in it."""
        if isinstance(value, ast.BoolOp):
            return ast.BoolOp(self._operator(value.op), [self._truth(one) for one in value.values])
        return _dict_of(value.value) if self._is_dict(value) else self._value(value)  # type: ignore[attr-defined]

    def _is_dict(self, value: ast.expr) -> bool:
        """Whether this is the `__dict__` of a variable of the function's own, or of a module of the state."""
        is_dict = isinstance(value, ast.Attribute) and value.attr == "__dict__"
        return is_dict and _id(value.value) in self._own | self._described.modules  # type: ignore[attr-defined]

    def _subscript(self, value: ast.Subscript) -> ast.expr:
        holder, key = value.value, value.slice
        if isinstance(holder, ast.Attribute) and self._is_dict(holder) and isinstance(key, ast.Constant):
            return ast.Subscript(_dict_of(holder.value), ast.Constant(_plain_name(key.value)), ast.Load())
        return ast.Subscript(self._value(holder), self._value(key), ast.Load())

    def _values(self, values: list[ast.expr]) -> list[Any]:
        return [self._value(one) for one in values]

    def _constant(self, value: ast.Constant) -> ast.expr:
        if type(value.value) not in _CONSTANTS:
            raise refused(f"a constant of the type {type(value.value).__name__}")
        return ast.Constant(value.value)

    def _variable(self, value: ast.Name) -> ast.expr:
        if value.id in self._known - self._described.libraries or value.id in _TYPES or value.id in self._own:
            return ast.Name(value.id, ast.Load())
        raise refused(f"the name {value.id!r:.80}")

    def _attribute(self, value: ast.Attribute) -> ast.expr:
        owner = value.value
        if isinstance(owner, ast.Name) and owner.id in self._described.modules:
            return ast.Subscript(_dict_of(owner), ast.Constant(_plain_name(value.attr)), ast.Load())
        if isinstance(owner, ast.Name) and owner.id == "torch" and "torch" in self._described.libraries:
            if _DTYPES.fullmatch(value.attr):
                return ast.Attribute(ast.Name("torch", ast.Load()), value.attr, ast.Load())
        elif value.attr in _ATTRIBUTES:
            return ast.Attribute(self._value(owner), value.attr, ast.Load())
        raise refused(f"the attribute {value.attr!r:.80}")

    def _call(self, value: ast.Call) -> ast.expr:
        function = value.func
        keywords = [self._keyword(one) for one in value.keywords]
        is_length = _id(function) == "len" and len(value.args) == 1 and self._is_dict(value.args[0])
        args = [self._truth(value.args[0])] if is_length else self._values(value.args)
        if _id(function) in self._described.functions:
            return ast.Call(ast.Name(_id(function), ast.Load()), args, keywords)
        if _id(function) in _FUNCTIONS | _TYPES and not keywords:
            if _id(function) == "map" and _id(*value.args[:1]) not in self._described.functions:
                raise refused("a call of something that was computed")
            if _id(function) == "type" and (len(args) != 1 or isinstance(args[0], ast.Starred)):
                raise refused("a class of its own")
            return ast.Call(ast.Name(_id(function), ast.Load()), args, [])
        if isinstance(function, ast.Attribute):
            return ast.Call(self._method(function), args, keywords)
        raise refused(f"a call of {ast.unparse(function):.80}")

    def _method(self, function: ast.Attribute) -> ast.expr:
        owner = function.value
        if isinstance(owner, ast.Name) and owner.id == "math" and "math" in self._described.libraries:
            if function.attr in _MATH:
                return ast.Attribute(ast.Name("math", ast.Load()), function.attr, ast.Load())
        elif function.attr == "get" and self._is_dict(owner):
            return ast.Attribute(_dict_of(owner.value), "get", ast.Load())  # type: ignore[attr-defined]
        elif function.attr in _METHODS:
            return ast.Attribute(self._value(owner), function.attr, ast.Load())
        raise refused(f"the method {function.attr!r:.80}")

    def _keyword(self, one: ast.keyword) -> ast.keyword:
        if one.arg is None:
            raise refused("keywords that were computed")
        return ast.keyword(one.arg, self._value(one.value))

    def _operator(self, one: Any) -> Any:
        if type(one) not in _OPERATORS:
            raise refused(f"the operator {type(one).__name__}")
        return type(one)()

    def _compare(self, value: ast.Compare) -> ast.expr:
        operators = [self._operator(one) for one in value.ops]
        return ast.Compare(self._value(value.left), operators, self._values(value.comparators))

    def _dict(self, value: ast.Dict) -> ast.expr:
        if None in value.keys:
            raise refused("a dict that was computed")
        return ast.Dict([self._value(key) for key in value.keys], self._values(value.values))


#: Each kind of expression, and what it is built of.
_EXPRESSIONS: dict[type, Callable[[_Function, Any], ast.expr]] = {
    ast.Constant: _Function._constant,
    ast.Name: _Function._variable,
    ast.Attribute: _Function._attribute,
    ast.Call: _Function._call,
    ast.Compare: _Function._compare,
    ast.Dict: _Function._dict,
    ast.Tuple: lambda f, v: ast.Tuple(f._values(v.elts), ast.Load()),
    ast.List: lambda f, v: ast.List(f._values(v.elts), ast.Load()),
    ast.Starred: lambda f, v: ast.Starred(f._value(v.value), ast.Load()),
    ast.Subscript: _Function._subscript,
    ast.Slice: lambda f, v: ast.Slice(
        *(None if part is None else f._value(part) for part in (v.lower, v.upper, v.step))
    ),
    ast.BoolOp: lambda f, v: ast.BoolOp(f._operator(v.op), f._values(v.values)),
    ast.BinOp: lambda f, v: ast.BinOp(f._value(v.left), f._operator(v.op), f._value(v.right)),
    ast.UnaryOp: lambda f, v: ast.UnaryOp(f._operator(v.op), f._value(v.operand)),
    ast.IfExp: lambda f, v: ast.IfExp(f._value(v.test), f._value(v.body), f._value(v.orelse)),
}


def _is_line(line: Any) -> bool:
    """Whether this is one line of text, or a check that is one and says what can be shown."""
    if type(line) is Check and all(type(part) is str and part.isprintable() for part in vars(line).values()):
        return True
    return type(line) is str and not any(end in line for end in "\n\r\f\0")


def _statements(lines: list[Line]) -> Iterator[list[Line]]:
    """The statements of a function's body, blocks as a whole: each is parsed by itself, in little memory."""
    piece: list[Line] = []
    for line in lines:
        text = str(line)
        if text[:4].strip() or (text and not text[4:]):
            raise SyntaxError("a line is not indented by four spaces")
        goes_on = text[4:].startswith((" ", "except ", "except:")) or not text
        if piece and not goes_on:
            yield piece
            piece = []
        piece.append(line)
    if any(str(line).strip() for line in piece):
        yield piece


def _dict_of(owner: ast.expr) -> ast.Attribute:
    return ast.Attribute(ast.Name(_id(owner), ast.Load()), "__dict__", ast.Load())


def _plain_name(name: Any) -> str:
    """The name of an attribute that is no part of Python's own machinery."""
    if not isinstance(name, str) or name.startswith("__"):
        raise refused(f"the attribute {name!r:.80}")
    return name


def _id(value: Any = None) -> str:
    """The name that an expression is; nothing for others."""
    return value.id if isinstance(value, ast.Name) else ""


def _is_miss(one: ast.If) -> bool:
    returned = one.body[0].value if len(one.body) == 1 and isinstance(one.body[0], ast.Return) else None
    return _id(returned) == "MISS"
