"""Stitch: the calls of regions as one function, straight-line Python again.

def forward(x, w_0, w_1):
    add, = region_0([x, w_0]); del x, w_0
    add_1, = region_0([add, w_1]); del add, w_1
    return (add_1,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foregrad.backends.eager import UniqueNames
from foregrad.backends.kernels.write_call_sequence import Function, Writer, stretches
from foregrad.core.generated import load_source
from foregrad.regions.regions import RegionCall, Regions
from foregrad.torch_private.tensors import empty_strided_cpu, reinterpret_tensor

#: A region: a function of one list, which it empties, or one of C++.
Compiled = Callable[[list[Any]], Any] | Function


def stitch(regions: Regions, compiled: Sequence[Compiled], name: str) -> Callable[..., tuple[Any, ...]]:
    """A function of the graph's inputs that calls the regions in order, and drops each value after its last use."""
    return _Stitching(regions, compiled, name).function()


class _Stitching:
    def __init__(self, regions: Regions, compiled: Sequence[Compiled], name: str) -> None:
        self.regions, self.compiled, self.name = regions, compiled, name
        values = {*regions.inputs, *regions.constants, *(v for call in regions.calls for v in call.outputs)}
        tools = {"empty_strided_cpu": empty_strided_cpu, "reinterpret_tensor": reinterpret_tensor, "torch": torch}
        self.names = UniqueNames(values | {name} | tools.keys())
        self.names.namespace.update(regions.constants)
        if any(isinstance(one, Function) for one in compiled):
            self.names.namespace.update(tools)

    def function(self) -> Callable[..., tuple[Any, ...]]:
        regions = self.regions
        kept = {*regions.results, *regions.constants}
        blocks: list[list[str]] = []
        for calls in reversed(stretches(regions.calls, self.compiled)):
            given = [v for call in calls for v in call.outputs]
            needed = [v for v in given if v in kept]
            taken = _taken(calls)
            dead = [v for v in taken if v not in kept]
            kept.update(taken)
            blocks.append([*self._lines(calls, needed), *([f"del {', '.join(dead)}"] if dead else [])])
        lines = [line for block in reversed(blocks) for line in block]
        lines.append(f"return ({''.join(f'{r}, ' for r in regions.results)})")
        body = "".join(f"    {line}\n" for line in lines)
        return load_source(f"def {self.name}({', '.join(regions.inputs)}):\n{body}", self.names.namespace, self.name)

    def _lines(self, calls: list[RegionCall], needed: list[str]) -> list[str]:
        """A call, or a series of them, after which the values that are needed are there."""
        function = self.compiled[calls[0].region]
        if isinstance(function, Function):
            writer = Writer(self.names.fresh)
            for call in calls:
                writer.add(call, self.compiled[call.region])  # type: ignore[arg-type]
            return writer.written(needed, lambda series: self.names.of("series", series))
        [call] = calls
        line = f"{self.names.of(f'region_{call.region}', function)}([{', '.join(call.inputs)}])"
        dropped = [v for v in call.outputs if v not in needed]
        line = f"{''.join(f'{v}, ' for v in call.outputs)}= {line}" if call.outputs else line
        return [line, *([f"del {', '.join(dropped)}"] if dropped else [])]


def _taken(calls: list[RegionCall]) -> dict[str, None]:
    """What calls take from before them. A view may be made again, under the same name, by a later one of them."""
    taken: dict[str, None] = {}
    given: set[str] = set()
    for call in calls:
        taken.update(dict.fromkeys(v for v in call.inputs if v not in given))
        given.update(call.outputs)
    return taken
