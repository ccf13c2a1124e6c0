"""The pure form of an op that writes: `mul_` becomes `mul`, `add.out` becomes `add`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from foregrad.core.spec import Spec
from foregrad.functionalize.example_arguments import look_of, stand_ins
from foregrad.record.ghosts.op_results import NewTensor
from foregrad.record.ghosts.table import GhostTable, kind_of, written_places
from foregrad.record.ops import Alias, Op, aliases_in
from foregrad.torch_private.ops import OpOverload, overload_name, schema_of

aten = torch.ops.aten


@dataclass(frozen=True)
class Pure:
    """A writing op without a pure form in ATen, made pure: works on copies, and returns them.

    Returns the op's own results that are not its arguments, then the new value of each written argument.
    """

    op: OpOverload

    @property
    def __name__(self) -> str:
        return f"pure_{schema_of(self.op).name.split('::')[1]}"

    def __call__(self, *args: Any, **kwargs: Any) -> list[Any]:
        args_list, kwargs = list(args), dict(kwargs)
        written: list[Any] = []
        for place in written_places(self.op, args, kwargs):
            holder: Any = kwargs if isinstance(place, str) else args_list
            if isinstance(place, int) and place >= len(args_list):
                continue
            holder[place] = _copy(holder[place])
            written.extend(holder[place] if isinstance(holder[place], list) else [holder[place]])
        result = self.op(*args_list, **kwargs)
        fresh = result if isinstance(result, (list, tuple)) else [result]
        return [r for r in fresh if not any(r is w for w in written) and r is not None] + written


def _copy(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_copy(v) for v in value]
    return None if value is None else value.clone()


@dataclass(frozen=True)
class Variant:
    """How to compute what a writing op writes.

    `func` takes the same arguments less those in `dropped`, and returns its own results, of which the first
    `num_results` are the op's and the rest, in order, are the new values of the written arguments.
    """

    func: Any
    dropped: tuple[str, ...]
    num_results: int
    returns_list: bool
    defaults: tuple[Any, ...] = ()  # of the writing op, where the pure form has others

    def filled(self, args: Any) -> Any:
        """Arguments with those spelt out that the pure form has no default for."""
        return (*args, *self.defaults[len(args) :])


#: Pure forms that go by a name of their own.
_OTHER_NAMES = {
    aten.native_batch_norm.default: Variant(aten._native_batch_norm_legit_functional.default, (), 3, True),
    aten._native_batch_norm_legit.default: Variant(aten._native_batch_norm_legit_functional.default, (), 3, True),
    aten.normal_.default: Variant(aten.normal_functional.default, (), 0, False),
}


@cache
def variant_of(func: OpOverload) -> Variant:
    return _OTHER_NAMES.get(func) or _in_place(func) or _with_out(func) or _pure(func)


def variant_for(op: Op) -> Variant:
    """How to compute what this call writes: random numbers fill a tensor in the order of its memory, and sums are
    added up in the dtype of an `out=` argument."""
    if kind_of(op.func).is_random and not all(alias.spec.is_contiguous for alias in op.writes):
        return _pure(op.func)
    return _pure(op.func) if writes_out(op.func) and _computes_in_dtype_of_out(op) else variant_of(op.func)


def _computes_in_dtype_of_out(op: Op) -> bool:
    has_choice = any(argument.name == "dtype" for argument in schema_of(op.func).arguments)
    given = {alias.dtype for alias in aliases_in(op.args)}
    return has_choice and op.kwargs.get("dtype") is None and any(alias.dtype not in given for alias in op.writes)


def writes_out(func: OpOverload) -> bool:
    """Whether an op writes to `out=` arguments."""
    return any(isinstance(place, str) for place in kind_of(func).writes)


def is_pointwise(func: OpOverload) -> bool:
    return torch.Tag.pointwise in getattr(variant_of(func).func, "tags", ())


def has_in_place(func: OpOverload) -> bool:
    """Whether an op can write its result over its first argument, as `addmm_` does."""
    namespace, name = schema_of(func).name.split("::")
    return hasattr(getattr(torch.ops, namespace), f"{name}_")


def _in_place(func: OpOverload) -> Variant | None:
    """`foo_` gives `foo`: the only written argument is the first, and it is what the op returns."""
    namespace, name = schema_of(func).name.split("::")
    if not name.endswith("_") or kind_of(func).writes != (0,):
        return None
    found = _overload_like(func, getattr(getattr(torch.ops, namespace), name[:-1], None))
    if found is None:
        return None
    returns = [str(r.type) for r in schema_of(found).returns]
    if returns == ["Tensor"] and str(schema_of(func).arguments[0].type) == "Tensor":
        same = overload_name(found) == overload_name(func)
        defaults = [a.default_value for a in schema_of(func).arguments if not a.kwarg_only]
        return Variant(found, (), 0, False, () if same else tuple(defaults))
    if returns == ["List[Tensor]"]:
        return Variant(found, (), 0, True)
    return None


def _overload_like(func: OpOverload, packet: Any) -> OpOverload | None:
    """The pure overload that takes the same arguments, the one of the same name first."""
    overloads = packet.overloads() if packet is not None else []
    for name in sorted(overloads, key=lambda n: n != overload_name(func)):
        found: OpOverload = getattr(packet, name)
        if not schema_of(found).is_mutable and _shape_of(found) == _shape_of(func):
            return found
    return None


def _with_out(func: OpOverload) -> Variant | None:
    """`foo.out` gives `foo`: every written argument is an `out`, and these are what the op returns."""
    writes = kind_of(func).writes
    if not writes or not all(isinstance(w, str) for w in writes) or len(schema_of(func).returns) != len(writes):
        return None
    names = tuple(str(w) for w in writes)
    namespace, name = schema_of(func).name.split("::")
    packet = getattr(getattr(torch.ops, namespace), name)
    wanted = [a for a in _shape_of(func) if a[0] not in names]
    for overload in packet.overloads():
        found = getattr(packet, overload)
        is_pure = all(str(r.type) == "Tensor" and r.alias_info is None for r in schema_of(found).returns)
        if is_pure and not schema_of(found).is_mutable and _shape_of(found) == wanted:
            return Variant(found, names, 0, len(names) > 1)
    return None


def _pure(func: OpOverload) -> Variant:
    own = [r for r in schema_of(func).returns if r.alias_info is None]
    return Variant(Pure(func), (), len(own), True)


def _shape_of(func: OpOverload) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in schema_of(func).arguments]


def made_by(func: Any, op: Op, alias: Alias, table: GhostTable, device: torch.device | None) -> Spec:
    """What the pure form of a writing op returns for an argument that the op writes."""
    variant = variant_for(op)
    key = ("pure", func, *look_of(op.args), *look_of(op.kwargs))
    with table.making():
        ghosts = variant.filled(stand_ins(op.args))
        kwargs = {k: stand_ins(v) for k, v in op.kwargs.items() if k not in variant.dropped}
    result = table.outcome(key, func, ghosts, kwargs, device).result
    made = result[variant.num_results + op.writes.index(alias)] if variant.returns_list else result
    if not isinstance(made, NewTensor):
        return alias.spec
    return replace(alias.spec, shape=made.size, stride=made.stride, dtype=made.dtype).frozen()
