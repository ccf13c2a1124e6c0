"""Graph inputs: the placeholders and constants of a graph, which stand before its ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import fx

from foregrad.core.signature import Input, identifier, unused
from foregrad.core.size import VARYING, Formula, Size
from foregrad.core.spec import NumberSpec, SizeSpec, Spec, TokenSpec
from foregrad.record.symbols.numbers import Expression
from foregrad.record.trace import TracedInput

#: What an input of a graph is: a tensor, a number, or None for tangents and kept values.
Given = TracedInput | Expression | Size | Formula | None

_LONGEST_NAME = 60


@dataclass(frozen=True, eq=False)
class GraphInputs:
    """The inputs of a graph so far, in order; numbers and generators are added when an op first takes them."""

    graph: fx.Graph
    generator_names: Mapping[torch.Generator, str]
    inputs: list[Input] = field(default_factory=list)
    given: list[Given] = field(default_factory=list)  # what each of them is
    constants: dict[str, torch.Tensor | torch.Generator] = field(default_factory=dict)
    _placeholders: list[fx.Node] = field(default_factory=list)
    _names: set[str] = field(default_factory=set)
    _numbers: dict[Expression | Size | Formula, fx.Node] = field(default_factory=dict)
    _generators: dict[torch.Generator, fx.Node] = field(default_factory=dict)

    def add(self, role: str, name: str, spec: Spec, given: Given, *, is_written: bool = False) -> fx.Node:
        last = self._placeholders[-1] if self._placeholders else None
        with self.graph.inserting_after(last) if last is not None else self.graph.inserting_before():
            node = self.graph.placeholder(unused(identifier(name), self._names))
        node.meta.update(spec=spec, phase=0, role=role, is_written=is_written)
        self.inputs.append(Input(role, name, spec))
        self.given.append(given)
        self._placeholders.append(node)
        return node

    def number(self, number: Expression | Size | Formula) -> fx.Node:
        """The input that brings a number."""
        if number not in self._numbers:
            spec = SizeSpec.make(number) if isinstance(number, Size) else NumberSpec.of(number.value)
            assert isinstance(spec, NumberSpec)
            text = str(number) if isinstance(number, VARYING) else number.text
            short = text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 3]}..."
            self._numbers[number] = self.add("number", short, spec, number)
        return self._numbers[number]

    def constant(self, real: torch.Tensor, spec: Spec) -> fx.Node:
        name = unused(f"constant_{len(self.constants)}", self._names)
        self.constants[name] = real
        node = self.graph.get_attr(name)
        node.meta.update(phase=0, spec=spec)
        return node

    def generator(self, generator: torch.Generator) -> fx.Node:
        """The constant that is a generator of the user's."""
        if generator not in self._generators:
            name = unused(identifier(self.generator_names[generator]), self._names)
            self.constants[name] = generator
            first = next(iter(self.graph.nodes), None)
            with self.graph.inserting_before(first) if first is not None else self.graph.inserting_before():
                node = self._generators[generator] = self.graph.get_attr(name)
            node.meta.update(phase=0, spec=TokenSpec.make(), generator=generator)
        return self._generators[generator]

    @property
    def unread(self) -> set[int]:
        """Tensors, by object, that no op takes."""
        pairs = zip(self._placeholders, self.given, strict=True)
        return {given.alias.object for node, given in pairs if isinstance(given, TracedInput) and not node.users}
