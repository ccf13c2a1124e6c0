"""Sizes at a call: what values of a graph look like in a call, where sizes vary, from the sizes that it is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import fx

from foregrad.core.generated import load_source
from foregrad.core.spec import SizeSpec, Spec, symbols_in

#: From the values of a graph's inputs: shapes and strides.
Looks = Callable[..., tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]]


def looks_at(graph: fx.GraphModule, specs: Sequence[Spec]) -> Looks | None:
    """A function of a graph's inputs that gives the shapes and strides of values; None where none of them vary."""
    if not any(map(symbols_in, specs)):
        return None
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    sizes = [n for n in inputs if isinstance(n.meta["spec"], SizeSpec)]
    named = {repr(n.meta["spec"].size): n.name for n in sizes}
    names = dict.fromkeys(repr(symbol) for spec in specs for symbol in symbols_in(spec))
    names_of_sizes = [f"    {name} = {named[name]}\n" for name in names if named[name] != name]
    found = "".join(f"({spec.shape!r}, {spec.stride!r}), " for spec in specs)
    taken = ", ".join(n.name for n in inputs)
    return load_source(f"def looks({taken}):\n{''.join(names_of_sizes)}    return ({found})\n", {}, "looks")
