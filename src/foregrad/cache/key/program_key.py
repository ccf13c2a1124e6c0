"""Program key: what a captured program depends on, so that the same one is compiled once.

The graph is told in a canonical text: values go by numbers, not by the names of variables or lines of the user's code.
Arguments go by their places. Parameters, buffers and other state go by their paths, by which they are found again.
"""

from __future__ import annotations

import dataclasses
import hashlib
from typing import Any

import torch
from torch import fx

from foregrad.cache.key.environment import environment_of
from foregrad.cache.key.ingredients import Key
from foregrad.cache.key.sources import SHOWERS, finish
from foregrad.cache.key.tensors import spec_text
from foregrad.cache.key.walk import KeyWalk
from foregrad.core.size import VARYING, Formula, Size
from foregrad.core.spec import SizeSpec, Spec, symbols_in
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import Redraw
from foregrad.program.program import Calling, Program
from foregrad.program.recompute_marks import MARK, mark_text
from foregrad.record.ops import Alias, Storage
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import TracedBase, TracedInput
from foregrad.runtime.options import Options
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.fake_tensors import FakeTensor


def program_key(program: Program, options: Options, **extra: Any) -> Key:
    """All ingredients of a program: what it computes, how it is called, the ops of the user's, the surroundings."""
    walk = KeyWalk(SHOWERS)
    writer = _Writer(walk, program)
    walk.add("program", writer.graph())
    walk.add("signature", writer.signature())
    walk.add("calling", writer.calling(program.calling))
    return Key((*environment_of(options, **extra).key.ingredients, *finish(walk).key.ingredients))


def contents_digest(key: Key) -> str:
    """What tells a program from others, without the surroundings that it is compiled in."""
    return Key(tuple(one for one in key.ingredients if one.name in _CONTENTS)).digest


_CONTENTS = ("program", "signature", "calling")


class _Writer:
    """Writes a program without the names that its author gave to things."""

    def __init__(self, walk: KeyWalk, program: Program) -> None:
        self.walk, self.program = walk, program
        self.numbers = {node.name: f"v{place}" for place, node in enumerate(program.graph.graph.nodes)}
        self.told: set[int] = set()
        objects = enumerate(program.calling.inputs)
        self.places = {one.alias.object: place for place, one in objects if isinstance(one, TracedInput)}
        inputs = [one for one in program.calling.inputs if isinstance(one, TracedInput)]
        self.of_any_size = {one.alias.storage for one in inputs if symbols_in(one.spec)}

    # -- the graph ------------------------------------------------------------------------------------------

    def graph(self) -> str:
        lines = [f"first phase {self.program.first_phase}"]
        for node in self.program.graph.graph.nodes:
            number = self.numbers[node.name]
            meta = [self.spec(node.meta.get("spec")), node.meta.get("phase", 0), node.meta.get("grad_enabled", True)]
            meta += [mark_text(node)] if node.meta.get(MARK) is not None else []
            if node.op == "placeholder":
                lines.append(f"{number} = input  {meta[0]}")
            elif node.op == "get_attr":
                lines.append(f"{number} = {self.constant(getattr(self.program.graph, str(node.target)))}")
            elif node.op == "output":
                lines.append(f"return {self.value(node.args[0])}")
            else:
                kwargs = {str(k): v for k, v in node.kwargs.items()}
                arguments = f"{self.value(node.args)} {self.value(kwargs)}"
                lines.append(f"{number} = {self.target(node.target)} {arguments}  {' '.join(map(str, meta))}")
        return "\n".join(lines)

    def target(self, target: Any) -> str:
        if isinstance(target, Pure):
            return f"pure {self.target(target.op)}"
        if isinstance(target, Redraw):
            return f"replay {self.target(target.op)}"
        if not callable(target):
            return repr(target)
        return self.walk.show(target, "the graph")

    def constant(self, value: Any) -> str:
        """A tensor that the graph holds: by its contents."""
        if not isinstance(value, torch.Tensor):
            return self.value(value)
        looks = spec_text(self.walk, value)
        if isinstance(value, FakeTensor) or value.device.type == "meta":
            return f"constant {looks}"
        with no_dispatch_modes(), torch.no_grad():
            data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return f"constant {looks} {hashlib.sha256(data).hexdigest()}"

    def spec(self, spec: Any) -> str:
        if not isinstance(spec, Spec):
            return "?" if spec is None else self.value(spec)
        device = self.walk.device(spec.device)
        kind = "" if type(spec) is Spec else f"{type(spec).__name__} "
        kind += f"{spec.size!r} " if isinstance(spec, SizeSpec) else ""
        return f"{kind}{spec.dtype}{list(spec.shape)} {list(spec.stride)} {device} {spec.requires_grad}"

    # -- how it is called -----------------------------------------------------------------------------------

    def signature(self) -> str:
        """Role and type of each input and output; names only of what is found by its path."""
        lines = []
        for place, one in enumerate(self.program.signature.inputs):
            name = "" if one.role in _BY_PLACE else f" {one.name}"
            lines.append(f"input {place}: {one.role}{name} {self.spec(one.spec)}")
        outputs = zip(self.program.signature.outputs, self.program.calling.outputs, strict=True)
        for place, (output, of) in enumerate(outputs):
            lines.append(f"output {place}: {output.role} {self.object(of)} {self.spec(output.spec)}")
        return "\n".join(lines)

    def object(self, number: int | None) -> str:
        if number is None:
            return "-"
        return f"of input {self.places[number]}" if number in self.places else f"%{number}"

    def by_value(self, table: dict[str, Any]) -> str:
        """A table whose keys are names of values, in the order of these."""
        return self.value(sorted((self.numbers.get(name, name), self.value(what)) for name, what in table.items()))

    def calling(self, calling: Calling) -> str:
        """What the generated call is written from, one part a line."""
        named: dict[str, dict[str, Any]] = {"readers": calling.checks.readers, "homes": {**calling.homes}}
        calling = dataclasses.replace(calling, checks=dataclasses.replace(calling.checks, readers={}))
        lines = [f"{place}: {self.input(one)}" for place, one in enumerate(calling.inputs)]
        for part in dataclasses.fields(calling):
            if part.name not in ("inputs", "outputs", *named):
                lines.append(f"{part.name}: {self.value(getattr(calling, part.name))}")
        lines += [f"{name}: {self.by_value(table)}" for name, table in named.items()]
        return "\n".join(lines)

    def input(self, one: TracedInput | Expression | Size | Formula | None) -> str:
        if not isinstance(one, TracedInput):
            return self.value(one)
        base = None if one.base is None else one.base.alias.object
        num_bytes = "any" if symbols_in(one.spec) else one.num_bytes
        flags = (one.is_leaf, one.is_view, one.is_hidden, one.is_argument, one.offset, num_bytes, base)
        return f"%{one.alias.object} {flags} {self.spec(one.spec)} {self.alias(one.alias)}"

    def alias(self, alias: Alias) -> str:
        parent = None if alias.parent is None else alias.parent.index
        return f"{alias!r} of %{alias.object} in {alias.storage.index} {alias.geometry} {alias.bits} {parent}"

    def value(self, value: Any) -> str:
        """A value of the graph or of what belongs to it; names of values are told by their numbers."""
        if isinstance(value, fx.Node):
            return self.numbers[value.name]
        if isinstance(value, Spec):
            return self.spec(value)
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            inner = ", ".join(self.value(v) for v in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        if isinstance(value, dict):
            return f"{{{', '.join(f'{self.value(k)}: {self.value(v)}' for k, v in value.items())}}}"
        if isinstance(value, (set, frozenset)):
            return f"set{sorted(self.value(v) for v in value)}"
        return self.part(value)

    def part(self, value: Any) -> str:
        """One of foregrad's own objects, or anything else."""
        if isinstance(value, TracedInput):
            return f"%{value.alias.object}"
        if isinstance(value, Alias):
            return self.alias(value)
        if isinstance(value, Storage):
            return f"storage {value.index} {value.kind} {'any' if value in self.of_any_size else value.num_bytes}"
        if isinstance(value, TracedBase):
            parts = (value.kind, value.input, value.needs_tangent, value.version)
            return f"base {self.alias(value.alias)} {self.value(parts)}"
        if isinstance(value, Expression):
            return self.number(value)
        if isinstance(value, VARYING):
            return repr(value)
        if isinstance(value, BaseException):
            return f"<{type(value).__name__}>"
        if isinstance(value, torch.Tensor):
            return f"<{spec_text(self.walk, value)}>"
        if dataclasses.is_dataclass(value) and type(value).__module__.startswith("foregrad."):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return f"{type(value).__name__}{self.value({k: v for k, v in fields.items() if k not in _APART})}"
        return self.walk.show(value, "the call")

    def number(self, value: Expression) -> str:
        """A number of Python's: how it is computed, the first time."""
        if value.index in self.told:
            return f"#{value.index}"
        self.told.add(value.index)
        read = f"{value.text} {self.value(value.source)}"
        made = read if value.function is None else self.target(value.function)
        return f"#{value.index} {type(value.value).__name__} {made} {self.value(value.args)}"


#: Inputs that are found by their place.
_BY_PLACE = ("input", "tangent", "saved", "base", "live")
#: What parts of a call hold that is real only while it is captured.
_APART = ("holder", "items", "lifted", "state_on_entry", "value_on_entry")
