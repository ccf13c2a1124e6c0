"""Constant values: tensors that depend on no input have a value that capture can compute when Python asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from foregrad.core.size import Size
from foregrad.record.ghosts.devices import Device
from foregrad.record.ghosts.op_results import NewTensor, Outcome, outcome_with
from foregrad.record.ghosts.storages import StorageTable
from foregrad.record.impure import effect_of, is_random
from foregrad.record.ops import Alias, ItemOf, Op, Storage, aliases_in
from foregrad.record.symbols.numbers import Expression
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.ops import OpOverload

aten = torch.ops.aten

_LARGEST = 1 << 22


def known_value(
    ops: Sequence[Op], memory: StorageTable, constants: dict[Storage, torch.Tensor], alias: Alias
) -> torch.Tensor | None:
    """The value of an alias, found by running the recorded ops that made it from constants; None if it has none."""
    found = _Evaluation(ops, memory, constants)
    for storage in found.before(alias.storage):  # in this order, since a program may be longer than Python recurses
        found.contents(storage)
    return found.value(alias)


#: Ops whose result has a shape that some of their arguments decide by their values.
DECIDE_SHAPE = {
    aten.nonzero.default: (0,),
    aten.masked_select.default: (1,),
    aten.index.Tensor: (1,),
    aten.repeat_interleave.Tensor: (0,),
}

#: Ops whose result is smaller than its ghost by what the data say; only ops of `GIVES_SIZE_ON` may take it.
SIZE_UNKNOWN = {aten._unique.default}

#: Ops that take tensors of any size, and whether their result has such a size too.
GIVES_SIZE_ON = {aten.index_select.default: True, aten.sum.default: False}

SHAPE_DEPENDS_ON_DATA = (
    "{func} gives or takes a tensor whose shape depends on data, so no fixed program can hold it.\n{where}\n"
    "Use a form with a fixed shape (torch.where instead of a boolean index), or leave this part outside the captured "
    "function."
)

#: Ops that give the same on every device.
_COPIES = {aten._to_copy.default, aten.clone.default, aten.copy_.default, aten.zeros.default, aten.ones.default}

Known = Callable[[torch.Tensor], torch.Tensor | None]


def outcome_by_value(func: OpOverload, args: Any, kwargs: Any, known: Known) -> Outcome | None:
    """What an op returns whose shape depends on arguments that depend on no input, such as a fixed mask."""
    deciding = DECIDE_SHAPE.get(func)
    if deciding is None or any(isinstance(v, torch.Tensor) for v in kwargs.values()) or not args[0].is_cpu:
        return None
    values = {place: _known_values(args[place], known) for place in deciding}
    if any(v is None for v in values.values()):
        return None
    with no_dispatch_modes(), torch.no_grad():
        given = {id(t) for v in values.values() for t in (v if isinstance(v, list) else [v])}
        return outcome_with(func, [values.get(place, arg) for place, arg in enumerate(args)], kwargs, given)


def largest_outcome(func: OpOverload, args: Any, elsewhere: Device) -> Outcome | None:
    """What an op of `SIZE_UNKNOWN` returns at most."""
    if func not in SIZE_UNKNOWN:
        return None
    size, device = (args[0].numel(),), None if args[0].is_cpu else elsewhere.true
    return Outcome((NewTensor(size, (1,), args[0].dtype, device), NewTensor((0,), (1,), torch.int64, device)), ())


def _known_values(value: Any, known: Known) -> Any:
    if isinstance(value, torch.Tensor):
        return known(value)
    if isinstance(value, (list, tuple)):
        found = [None if v is None else known(v) for v in value]
        return None if any(f is None and v is not None for f, v in zip(found, value, strict=True)) else found
    return value


class _Evaluation:
    """Runs recorded ops on the CPU, as far as they depend on constants alone."""

    def __init__(self, ops: Sequence[Op], memory: StorageTable, constants: dict[Storage, torch.Tensor]) -> None:
        self._ops = ops
        self._blocks = memory
        self._constants = constants
        self._memory: dict[Storage, torch.Tensor | None] = {}  # the contents of each storage, seen through its root

    def before(self, storage: Storage) -> list[Storage]:
        """What a storage was made from, and that from, in the order in which it was made."""
        found: dict[Storage, int] = {}
        stack = [storage]
        while stack:
            one = stack.pop()
            made_by = self._blocks[one].root.op
            if one in found or self._has_none(one):
                continue
            found[one] = -1 if made_by is None else made_by
            if made_by is not None and made_by < len(self._ops):
                op = self._ops[made_by]
                stack += [alias.storage for alias in aliases_in((op.args, op.kwargs))]
        return sorted(found, key=found.__getitem__)

    def value(self, alias: Alias) -> torch.Tensor | None:
        root = self.contents(alias.storage)
        if root is None or alias.dtype != root.dtype or alias.bits:
            return None
        return root.as_strided(alias.size, alias.stride, alias.offset)

    def contents(self, storage: Storage) -> torch.Tensor | None:
        if storage not in self._memory:
            self._memory[storage] = None  # while it is being computed: a cycle has no value
            self._memory[storage] = self._contents(storage)
        return self._memory[storage]

    def _has_none(self, storage: Storage) -> bool:
        """Whether a storage is known to have no value without a look at what it was made from."""
        block = self._blocks[storage]
        return storage.kind == "input" or block.root.spec.num_bytes > _LARGEST or block.is_grown

    def _contents(self, storage: Storage) -> torch.Tensor | None:
        block = self._blocks[storage]
        if self._has_none(storage):
            return None
        if storage.device.type != "cpu" and not self._is_same_on_cpu(storage):
            return None
        constant = self._constants.get(storage)
        root = constant.clone() if constant is not None else self._made(block.root)
        for op in self._ops if block.num_writes and root is not None else ():
            if any(written.storage is storage for written in op.writes):
                self._memory[storage] = root
                args, kwargs = self._all(op.args), self._all(op.kwargs)
                if args is None or kwargs is None or _is_impure(op):
                    return None
                op.func(*args, **kwargs)
        return root

    def _is_same_on_cpu(self, storage: Storage) -> bool:
        """Whether the CPU computes exactly what another device does: integers, and copies. Nothing is on meta."""
        if storage.device.type == "meta":
            return False
        ops = [op for op in self._ops if any(a.storage is storage for a in aliases_in(op.outputs)) and not op.is_view]
        dtype = self._blocks[storage].root.dtype
        is_exact = not (dtype.is_floating_point or dtype.is_complex)
        return is_exact or all(op.func in _COPIES for op in ops)

    def _made(self, root: Alias) -> torch.Tensor | None:
        """The value with which a storage began."""
        if root.op is None or root.op >= len(self._ops):
            return None
        op = self._ops[root.op]
        args, kwargs = self._all(op.args), self._all(op.kwargs)
        if args is None or kwargs is None or op.writes or op.renames is not None or _is_impure(op):
            return None
        if any(self._blocks[alias.storage].num_writes for alias in aliases_in((op.args, op.kwargs))):
            return None  # what it was made from may have been something else then
        result = op.func(*args, **kwargs)
        return result[root.position] if isinstance(result, (list, tuple)) else result

    def _all(self, value: Any) -> Any:
        """Arguments with every alias replaced by its value; None if one has none."""
        if isinstance(value, Alias):
            return self.value(value)
        if isinstance(value, (Expression, ItemOf, Size)):
            return None
        if isinstance(value, torch.device):
            return torch.device("cpu")
        if isinstance(value, dict):
            found = {k: self._all(v) for k, v in value.items()}
            return None if any(found[k] is None and value[k] is not None for k in value) else found
        if isinstance(value, (list, tuple)):
            items = [self._all(v) for v in value]
            return None if any(i is None and v is not None for i, v in zip(items, value, strict=True)) else items
        return value


def _is_impure(op: Op) -> bool:
    return is_random(op.func) or effect_of(op.func) is not None
