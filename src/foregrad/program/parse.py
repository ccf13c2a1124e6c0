"""Parse: a program from its listing.

`parse(str(program))` computes the same, and prints the same text. What the listing does not say is not there: how the
program hangs together with the tensors of a call, which of them need gradients, in which mode ops ran, the values of
constants (unless they are given), and sizes that vary.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils.checkpoint import CheckpointPolicy

from foregrad.core.errors import ProgramError
from foregrad.core.signature import INPUT_ROLES, OUTPUT_ROLES, Input, Output, Signature, identifier, unused
from foregrad.core.spec import SHORT_DTYPES, NumberSpec, Spec, TokenSpec, contiguous_stride
from foregrad.core.tokens import after
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import Redraw, rng_state
from foregrad.program.printer import PHASES
from foregrad.program.program import Calling, Program
from foregrad.program.recompute_marks import MARK, MARK_WORDS
from foregrad.torch_private.fx_graph import lazy_graph_module
from foregrad.torch_private.ops import schema_of

_TENSOR = re.compile(r"(\w+)\[([\d, ]*)\](?: stride \(([\d, ]*)\))?(?: (\S+))?")
_CONSTANT = re.compile(r"    \w+ = (constant|generator)\b")
_DTYPES = {text: dtype for dtype, text in SHORT_DTYPES.items()}
_NUMBERS = {"float": NumberSpec.of(0.0), "int": NumberSpec.of(0)}
_MARKS: dict[str, CheckpointPolicy] = {words: mark for mark, words in MARK_WORDS.items()}
_TOKENS = ("token", "seed", "offset")
_FUNCTIONS = {"after": after, "rng_state": rng_state}


def parse(text: str, constants: Mapping[str, torch.Tensor | torch.Generator] | None = None) -> Program:
    """The program that a listing shows; `constants` are the values of its constants, by name."""
    return _Parser(text, constants or {}).program()


@dataclass
class _Parser:
    text: str
    constants: Mapping[str, torch.Tensor | torch.Generator]
    graph: fx.Graph = field(default_factory=fx.Graph)
    nodes: dict[str, fx.Node] = field(default_factory=dict)
    inputs: list[Input] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    results: list[fx.Node | None] = field(default_factory=list)
    phases: list[int] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    origin: str = ""
    line: int = 0

    def program(self) -> Program:
        section = ""
        for text in self._lines():
            if not text.startswith("    "):
                section, self.origin = text.strip(), ""
                if section in PHASES:
                    again = bool(self.phases) and section == PHASES[-1] and self.phases[-1] >= len(PHASES) - 1
                    self.phases.append(self.phases[-1] + 1 if again else PHASES.index(section))
                elif section not in ("inputs", "outputs"):
                    raise self._refusal(f"there is no section {section!r}")
            elif section == "inputs" and not _CONSTANT.match(text):
                self._input(text[4:])
            elif section == "outputs":
                self._output(text[4:])
            elif text.startswith("    # "):
                self.origin = text[6:]
            elif not text.startswith("    -- "):
                self._node(text[4:])
        self.graph.output(tuple(self.results))
        self.graph.lint()
        signature = Signature(tuple(self.inputs), tuple(self.outputs))
        used = {str(n.target): self.constants[str(n.target)] for n in self.graph.nodes if n.op == "get_attr"}
        graph = lazy_graph_module(used, self.graph, "Program")
        return Program(self.name, graph, signature, Calling.of_graph(signature), min(self.phases, default=0))

    def _lines(self) -> Iterator[str]:
        first, *rest = self.text.splitlines() or [""]
        self.line, self.name = 1, first.removeprefix("program ")
        if not first.startswith("program "):
            raise self._refusal("a listing begins with `program` and a name")
        for self.line, text in enumerate(rest, 2):
            if text.strip():
                yield text

    # -- lines ------------------------------------------------------------------------------------------

    def _input(self, text: str) -> None:
        role, rest = self._role(text, INPUT_ROLES)
        name, spec = self._named(rest)
        if spec is None:
            raise self._refusal(f"the input {name} has no type")
        self.inputs.append(Input(role, name, spec))
        is_token = isinstance(spec, TokenSpec)
        node = self.graph.placeholder(unused(identifier(f"{role} {name}" if is_token else name), self.names))
        node.meta.update(spec=spec, phase=0, role=role, origin="")
        self.nodes[node.name] = node

    def _output(self, text: str) -> None:
        role, rest = self._role(text, OUTPUT_ROLES)
        name, _, rest = rest.partition(" = ")
        value, spec = self._named(rest)
        self.outputs.append(Output(role, name, spec))
        self.results.append(None if value == "None" else self._known(value))

    def _node(self, text: str) -> None:
        name, _, rest = text.partition(" = ")
        end = self._end(rest)
        spec, mark = self._type_and_mark(rest[end:])
        expression = rest[:end].strip()
        if expression in ("constant", "generator"):
            if name not in self.constants:
                raise self._refusal(f"{name} is a constant, whose value a listing does not say: give it in constants=")
            node = self.graph.get_attr(name)
            node.meta.update({"generator": self.constants[name]} if expression == "generator" else {})
        else:
            target, args, kwargs = self._call(expression)
            node = self.graph.create_node("call_function", target, args, kwargs, name=name)
        if node.name != name:
            raise self._refusal(f"there are two values {name}")
        phase = self.phases[-1] if self.phases else 0
        node.meta.update(spec=spec, phase=phase, origin=self.origin, grad_enabled=True)
        if mark is not None:
            node.meta[MARK] = mark
        self.nodes[name] = node

    # -- parts of lines ---------------------------------------------------------------------------------

    def _role(self, text: str, roles: Mapping[str, str]) -> tuple[str, str]:
        for role in sorted(roles, key=len, reverse=True):
            if text.startswith(f"{role} "):
                return role, text[len(role) :].strip()
        raise self._refusal(f"there is no role in {text!r}")

    def _named(self, text: str) -> tuple[str, Spec | None]:
        name, *types = re.split(r" {2,}", text.strip())
        return name, self._spec(types[0]) if types else None

    def _type_and_mark(self, text: str) -> tuple[Spec | None, CheckpointPolicy | None]:
        *types, last = re.split(r" {2,}", text.strip()) if text.strip() else [""]
        words = last[1:-1].partition(", but saved")[0] if last.startswith("(") else None
        if words is not None and words not in _MARKS:
            raise self._refusal(f"there is no mark {words!r}")
        spec = "".join(types) if words is not None else last
        return self._spec(spec) if spec else None, _MARKS[words] if words is not None else None

    def _spec(self, text: str) -> Spec:
        if text in _NUMBERS:
            found = _NUMBERS[text]
            assert isinstance(found, Spec)
            return found
        if text in _TOKENS:
            return TokenSpec.make(text)
        parts = _TENSOR.fullmatch(text)
        if parts is None or not isinstance(dtype := _DTYPES.get(parts[1], getattr(torch, parts[1], None)), torch.dtype):
            raise self._refusal(f"{text!r} is no type of a tensor with plain sizes")
        shape = _sizes(parts[2])
        stride = contiguous_stride(shape) if parts[3] is None else _sizes(parts[3])
        return Spec(shape, stride, dtype, torch.device(parts[4] or "cpu"))

    def _call(self, text: str) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        try:
            tree = ast.parse(text, mode="eval").body
        except SyntaxError:
            raise self._refusal(f"{text!r} is no call of an op") from None
        if isinstance(tree, ast.Subscript):
            return operator.getitem, (self._value(tree.value), self._value(tree.slice)), {}
        if not isinstance(tree, ast.Call):
            raise self._refusal(f"{text!r} is no call of an op")
        args = tuple(self._value(a) for a in tree.args)
        kwargs = {str(k.arg): self._value(k.value) for k in tree.keywords}
        return self._target(tree.func, args), args, kwargs

    def _target(self, tree: ast.expr, args: tuple[Any, ...]) -> Any:
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and len(tree.args) == 1:
            kind: Any = {"pure": Pure, "replay": Redraw}.get(tree.func.id)
            if kind is not None:
                return kind(self._target(tree.args[0], args[1:] if kind is Redraw else args))
        text = ast.unparse(tree)
        if text in _FUNCTIONS:
            return _FUNCTIONS[text]
        namespace, name, *overload = [*text.split("."), ""][:3] if "." in text else ["", text, ""]
        packet = getattr(getattr(torch.ops, namespace), name, None) if namespace else None
        names = [overload[0]] if overload[0] else ["default", "Tensor"]
        overloads = [getattr(packet, one) for one in names if hasattr(packet, one)]
        if not overloads:
            raise self._refusal(f"there is no op {text}")
        return min(overloads, key=lambda one: _mismatches(one, args))

    def _value(self, tree: ast.expr) -> Any:
        if isinstance(tree, (ast.List, ast.Tuple)):
            return [self._value(one) for one in tree.elts]
        if isinstance(tree, ast.Name):
            found = _DTYPES.get(tree.id) if tree.id not in self.nodes else None
            found = found or (None if tree.id in self.nodes else getattr(torch, tree.id, None))
            if isinstance(found, (torch.dtype, torch.layout, torch.memory_format)):
                return found
            return float(tree.id) if tree.id in ("inf", "nan") and tree.id not in self.nodes else self._known(tree.id)
        if isinstance(tree, ast.Call) and ast.unparse(tree.func) == "device":
            return torch.device(**{str(k.arg): ast.literal_eval(k.value) for k in tree.keywords})
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.USub):
            return -self._value(tree.operand)
        try:
            return ast.literal_eval(tree)
        except ValueError:
            raise self._refusal(f"{ast.unparse(tree)!r} is no argument that can be read") from None

    def _known(self, name: str) -> fx.Node:
        if name not in self.nodes:
            raise self._refusal(f"there is no value {name} before this line")
        return self.nodes[name]

    def _end(self, text: str) -> int:
        """Where the expression at the start of a text ends: at a space outside of brackets and quotes."""
        depth, quote, escaped = 0, "", False
        for place, letter in enumerate(text):
            if quote:
                quote, escaped = "" if letter == quote and not escaped else quote, letter == "\\" and not escaped
            elif letter in "'\"":
                quote = letter
            elif letter in "([":
                depth += 1
            elif letter in ")]":
                depth -= 1
            elif letter == " " and not depth:
                return place
        return len(text)

    def _refusal(self, what: str) -> ProgramError:
        return ProgramError(f"line {self.line} of the listing: {what}.")


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(",") if one.strip())


def _mismatches(op: Any, args: tuple[Any, ...]) -> int:
    """How badly an overload fits: a number may stand for a tensor, but no tensor for a number."""
    found = 0
    for expected, given in zip(schema_of(op).arguments, args, strict=False):
        is_tensor = isinstance(given, fx.Node) and not isinstance(given.meta.get("spec"), NumberSpec)
        wants_tensor = "Tensor" in str(expected.type)
        if given is not None and not isinstance(given, list) and is_tensor != wants_tensor:
            found += 1 if wants_tensor else len(args) + 1
    return found
