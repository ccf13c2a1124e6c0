"""Stitch: the calls of regions as one function, straight-line Python again.

def forward(x, w_0, w_1):
    add, = region_0(x, w_0); del x, w_0
    add_1, = region_0(add, w_1); del add, w_1
    return (add_1,)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foregrad.backends.eager import Names
from foregrad.regions.regions import Regions
from foregrad.words.generated import load_source


def stitch(
    regions: Regions, callables: Sequence[Callable[..., Any]], name: str, *, boxed: bool = False
) -> Callable[..., tuple[Any, ...]]:
    """A function of the graph's inputs that calls the regions in order, and drops each value after its last use.

    Boxed regions take one list, and empty it.
    """
    values = {*regions.inputs, *regions.constants, *(v for call in regions.calls for v in call.outputs)}
    names = Names(values | {name})
    names.namespace.update(regions.constants)
    functions = [names.of(f"region_{place}", function) for place, function in enumerate(callables)]
    kept = {*regions.results, *regions.constants}
    lines: list[str] = []
    for call in reversed(regions.calls):
        dead = [v for v in dict.fromkeys((*call.inputs, *call.outputs)) if v not in kept]
        kept.update(dead)
        given = "".join(f"{v}, " for v in call.outputs)
        given_to = ", ".join(call.inputs)
        line = f"{functions[call.region]}([{given_to}])" if boxed else f"{functions[call.region]}({given_to})"
        line = f"{given}= {line}" if given else line
        lines.append(line + (f"; del {', '.join(dead)}" if dead else ""))
    lines.reverse()
    lines.append(f"return ({''.join(f'{r}, ' for r in regions.results)})")
    body = "".join(f"    {line}\n" for line in lines)
    return load_source(f"def {name}({', '.join(regions.inputs)}):\n{body}", names.namespace, name)
