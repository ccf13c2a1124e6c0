"""Compiled code behaves as the ops that it stands for, or these run in its place.

Fixed code cannot follow what the dispatcher would do with each op: batch it under `vmap`, or cast it under autocast.
Then the ops run one by one. What the code makes itself is as new, whatever kernel wrote to it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from foregrad.backends.backend import Runner
from foregrad.backends.sizes_at_call import Looks, looks_at
from foregrad.core.spec import NumberSpec, Spec, is_lazy
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, exclude_keys, ops_are_transformed
from foregrad.torch_private.tensors import check_layout

if TYPE_CHECKING:
    from foregrad.regions.fallbacks import Fallback
    from foregrad.regions.regions import Regions


class Guarded:
    """Compiled code, with the ops one by one behind it."""

    def __init__(
        self,
        run: Runner,
        graph: Callable[[], fx.GraphModule],
        name: str,
        layouts: list[tuple[int, Spec]],
        cuts: str | None = None,
        looks: Looks | None = None,
    ) -> None:
        self.run = run
        self.graph, self.name, self.layouts = graph, name, layouts
        self.looks = looks  # the shapes and strides of these inputs, where sizes vary
        self._fixed_looks = tuple((spec.shape, spec.stride) for _, spec in layouts)
        self.cuts = cuts  # where the graph was cut into regions
        self._is_given_by_hooks = name == "backward"

    @staticmethod
    def of(run: Runner, graph: fx.GraphModule, name: str, regions: Regions | None = None) -> Guarded:
        from foregrad.backends.compilable import is_opaque
        from foregrad.regions.regions import regions_to_text

        placeholders = list(enumerate(n for n in graph.graph.nodes if n.op == "placeholder"))
        tensors = [(i, n) for i, n in placeholders if not isinstance(n.meta["spec"], NumberSpec)]
        layouts = [(i, n.meta["spec"]) for i, n in tensors if not all(is_opaque(u) for u in n.users)]
        cuts, looks = None if regions is None else regions_to_text(regions), looks_at(graph, [s for _, s in layouts])
        made = Guarded(run, lambda: graph, name, [(i, spec.plain()) for i, spec in layouts], cuts, looks)
        made.regions = regions
        return made

    @cached_property
    def regions(self) -> Regions | None:
        """What was compiled once and is called often."""
        from foregrad.regions.regions import regions_from_text

        return None if self.cuts is None else regions_from_text(self.graph(), self.cuts)

    @property
    def fallbacks(self) -> tuple[Fallback, ...]:
        """The ops that were not compiled."""
        from foregrad.regions.regions import fallbacks_in

        return () if self.cuts is None else fallbacks_in(self.cuts)

    def but(self, fallback: Fallback) -> Guarded:
        """The same, with one more thing that was not compiled as it should be."""
        from foregrad.regions.regions import regions_to_text

        if self.regions is not None:
            first, *rest = (region.fallbacks for region in self.regions.distinct)
            self.regions = self.regions.with_fallbacks([(*first, fallback), *rest])
            self.cuts = regions_to_text(self.regions)
        return self

    @property
    def library(self) -> Any:
        """The path of the shared library, where the code is one."""
        return getattr(self.run, "library", None)

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        with exclude_keys(BELOW_AUTOGRAD):  # where versions are counted, too: what the code makes is as new
            if ops_are_transformed():
                return self.op_by_op(*inputs)
            return self.run(*(self._fitted(inputs) if self._is_given_by_hooks else inputs))

    def op_by_op(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the ops that the code stands for."""
        return self._ops(*inputs)

    @cached_property
    def _ops(self) -> Runner:
        from foregrad.backends.eager import compile_graph

        return compile_graph(self.graph(), self.name)

    def _fitted(self, inputs: tuple[Any, ...]) -> Any:
        """What was saved may have gone through hooks of the user's: it has the shapes, but maybe not the layouts, or is
        a view as the negative of what is in memory."""
        looks = self._fixed_looks if self.looks is None else self.looks(*inputs)
        try:
            for (place, _), (shape, stride) in zip(self.layouts, looks, strict=True):
                check_layout(inputs[place], shape, stride)
                assert not inputs[place].is_neg()
        except AssertionError:
            specs = {i: looking(spec, look) for (i, spec), look in zip(self.layouts, looks, strict=True)}
            return [_fit(value, specs[i]) if i in specs else value for i, value in enumerate(inputs)]
        return inputs


def fitting(run: Runner, graph: fx.GraphModule) -> Runner:
    """Ops one by one among compiled code, which relies on the layouts that shape functions tell of their results."""
    results: Any = graph.graph.output_node().args[0]
    specs = [r.meta.get("spec") if isinstance(r, fx.Node) else None for r in results]
    plain = tuple(spec.plain() if isinstance(spec, Spec) else None for spec in specs)
    return Fitting(run, plain, looks_at(graph, [spec for spec in specs if isinstance(spec, Spec)]))


@dataclass(frozen=True, eq=False)
class Fitting:
    """A function whose results are copied to other layouts where they are not of these."""

    run: Runner
    specs: tuple[Any, ...]
    looks: Looks | None = None

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        specs = self.specs
        if self.looks is not None:
            looks = iter(self.looks(*inputs))
            specs = tuple(None if spec is None else looking(spec, next(looks)) for spec in specs)
        results = zip(self.run(*inputs), specs, strict=True)
        return tuple(_fit(value, spec) if isinstance(spec, Spec) else value for value, spec in results)


def looking(spec: Spec, look: tuple[tuple[int, ...], tuple[int, ...]]) -> Spec:
    """A spec with the shape and strides of a call."""
    return replace(spec, shape=look[0], stride=look[1])


def _fit(value: torch.Tensor, spec: Spec) -> torch.Tensor:
    if value.stride() == spec.stride and not is_lazy(value):
        return value
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=spec.device).copy_(value)
