"""Recorder: the dispatch mode that sees every op below autograd and writes it down, computing nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.sparse import is_sparse
from foregrad.core.wrapper_subclass import is_wrapper_type
from foregrad.record.constant_values import (
    GIVES_SIZE_ON,
    SHAPE_DEPENDS_ON_DATA,
    SIZE_UNKNOWN,
    largest_outcome,
    outcome_by_value,
)
from foregrad.record.data_reads import Values
from foregrad.record.draws import Draws
from foregrad.record.generators import Generators
from foregrad.record.ghosts.allocate import memory_of, new_ghost
from foregrad.record.ghosts.op_results import Outcome, SparseResult
from foregrad.record.ghosts.sparse import sparse_result
from foregrad.record.ghosts.table import RESIZES, SAYS_NO_VIEW, Kind, kind_of, make, written
from foregrad.record.ghosts.tensors import GhostTensors, SparseOperand
from foregrad.record.impure import draws, generator_in, goes_by_data
from foregrad.record.memory_behind import refuse_memory_behind
from foregrad.record.ops import Alias, ItemOf, Op, Storage, aliases_in
from foregrad.record.origins import Origins, where
from foregrad.record.python.executed_code import Executed
from foregrad.record.python.native_code import refuse_native_argument
from foregrad.record.python.python_calls import PythonCalls
from foregrad.record.set_storage import SETS, check_history, check_shape
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.dimensions import Sizes
from foregrad.record.symbols.numbers import Expression, expression_of
from foregrad.record.symbols.sizes import SYMBOLS, without_methods
from foregrad.record.version_bumps import Bumps
from foregrad.record.wrapper_ops import op_on_wrapper, waited
from foregrad.torch_private.autograd import set_version, version_of
from foregrad.torch_private.dispatch import (
    TorchDispatchMode,
    fake_mode_is_on,
    is_traced_by_fx,
    no_dispatch_modes,
    no_function_modes,
    num_function_modes,
)
from foregrad.torch_private.fake_tensors import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    UnsupportedOperatorException,
)
from foregrad.torch_private.ops import OpOverload, composite_of
from foregrad.torch_private.pytree import tree_leaves, tree_map_only
from foregrad.torch_private.tensors import storage_key, view_base

aten = torch.ops.aten
_LIFTS = {aten.lift_fresh.default, aten.lift.default}
_READS_DATA = {
    aten._local_scalar_dense.default,
    aten.is_nonzero.default,
    aten.equal.default,
    aten.allclose.default,
}
_PUTS = {aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
_PLAIN = {int, float, bool, str, type(None), torch.dtype, torch.layout, torch.memory_format, complex}
_SKIPPED = {"prim", "profiler"}  # namespaces of ops that compute nothing


class Recorder(GhostTensors, TorchDispatchMode):
    """Turns calls into `Op`s over `Alias`es.

    `lift` is asked for a ghost when a real tensor turns up among the arguments of an op.
    """

    def __init__(self, lift: Callable[[torch.Tensor], torch.Tensor], sizes: Sizes | None, executed: Executed) -> None:
        TorchDispatchMode.__init__(self)
        GhostTensors.__init__(self, lift, sizes)
        self.ops: list[Op] = []
        self.constants: dict[Storage, torch.Tensor] = {}
        self.live: set[Storage] = set()
        self.unsized: set[Storage] = set()  # tensors whose size depends on data, and is a bound here
        self.values = Values(self)
        self.python_calls = PythonCalls(self)
        self.silent: set[int] = set()  # ops that bump no version counter, though they would by themselves
        self.phase = 0
        self.has_functions = False  # whether a backward has run that of a custom Function
        self._bumps = Bumps()
        self.module = ""
        self._origins = Origins(self._note_live)
        self.draws = Draws()
        self.generators = Generators()
        self.executed = executed

    supports_higher_order_operators = True  # to refuse them in words

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # saves a wrapper around every op; nobody compiles a recording

    def forget(self, start: int) -> None:
        """Let go of the ops from this one on."""
        self._bumps.undo(self.ops, start)
        del self.ops[start:]
        self.memory.forget(start)

    def go_on_from(self, ops: Sequence[Op]) -> None:
        """Continue a recording after these ops of an earlier backward."""
        self._bumps.redo(ops)
        self.ops += ops
        self.memory.recall(ops)

    # -- the ops --------------------------------------------------------------------------------------

    @property
    def is_aside(self) -> bool:
        """Whether ops are run to learn sizes only, in a fake mode that is not ours."""
        return fake_mode_is_on(None if self.sizes is None else self.sizes.mode)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.is_aside:
            return func(*args, **(kwargs or {}))
        if is_traced_by_fx():
            raise CaptureError(
                f"the function traces a function with make_fx, as torch.func.linearize does.\n{self._where()}\nDo this "
                "outside, or use torch.func.jvp."
            )
        if types and any(map(is_wrapper_type, types)):
            with self:
                return op_on_wrapper(func, args, kwargs or {}, self._swap, self.module)
        if num_function_modes():
            with no_function_modes():
                return self.dispatch(func, args, kwargs or {})
        return self.dispatch(func, args, kwargs or {})

    def dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Record an op. Those of torch run no code of the user's: it is not looked for meanwhile."""
        if getattr(func, "namespace", "") != "aten" or not self.executed.pause():
            return self._dispatch(func, args, kwargs)
        try:
            return self._dispatch(func, args, kwargs)
        finally:
            self.executed.resume()

    def _dispatch(self, func: Any, args: Any, kwargs: Any) -> Any:
        if not isinstance(func, OpOverload):
            raise CaptureError(
                f"torch's higher-order op {func.name()} cannot be captured yet.\n{self._where()}\n"
                "Leave this part outside the captured function."
            )
        if func.namespace in _SKIPPED:
            return func(*args, **kwargs)
        if self.sizes is not None:
            args, kwargs = without_methods(args), without_methods(kwargs)
        if func in _LIFTS and not self.knows(args[0]):
            return self._constant(args[0])
        if func in _READS_DATA:
            return self.values.read(func, args, kwargs)
        if func is aten.size.default:  # C++ wants plain sizes, as the formula for a second derivative of abs() does
            return list(map(int, args[0].size()))
        composite = composite_of(func)
        if composite is not None:  # autograd is off altogether, or above a tensor that wraps others
            with self:
                return composite(*args, **kwargs)
        func = SAYS_NO_VIEW.get(func) or waited(func, self.module)
        kind = kind_of(func)
        given: list[torch.Tensor] = []
        key: list[Any] = [func]
        try:
            op_args = tuple([self._encode(a, key, given) for a in args])
            op_kwargs = {k: self._encode(v, key, given) for k, v in kwargs.items()} if kwargs else kwargs
        except SparseOperand:
            return self._on_sparse(func, args, kwargs)
        key.extend(kwargs)
        if self.values.numbers_used:
            args, kwargs = self.values.without_numbers((args, kwargs))
        if kind.is_view and given:  # not one of a Python number
            return self._view(func, args, kwargs, op_args, op_kwargs)
        if kind.changes_metadata:
            func, args, op_args = self._without_storages(func, args, op_args)
            return self._change_metadata(func, args, kwargs, op_args, op_kwargs, given)
        try:
            return self._compute(func, kind, tuple(key), given, op_args, op_kwargs, args, kwargs)
        except SparseResult:
            ghosts = tree_map_only(Alias, lambda alias: self.objects[alias.object], (op_args, op_kwargs))
            with self:
                return sparse_result(func, ghosts[0], ghosts[1], self.here)

    def _on_sparse(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op on sparse tensors that the function reaches for by itself: on what stands for them."""
        args, kwargs = tree_map_only(torch.Tensor, lambda t: self._lift(t) if is_sparse(t) else t, (args, kwargs))
        with self:
            return func(*args, **kwargs)

    def _encode(self, value: Any, key: list[Any], given: list[torch.Tensor]) -> Any:
        """The recorded form of an argument; adds what it looks like to the key, tensors to `given`."""
        kind = type(value)
        if kind in _PLAIN:
            key.append(kind)
            key.append(value)
            return value
        if isinstance(value, torch.Tensor):
            alias = self._alias_of.get(id(value)) or self.alias(value)
            if self.unsized and alias.storage in self.unsized and key[0] not in GIVES_SIZE_ON:
                raise CaptureError(SHAPE_DEPENDS_ON_DATA.format(func=key[0], where=self._where()))
            key.append(alias.meta)
            given.append(value if id(value) in self._alias_of else self.objects[alias.object])
            return alias
        if kind is list or kind is tuple:
            key.append(len(value))
            return [self._encode(v, key, given) for v in value]
        if kind is torch.device:
            key.append(self.device.shown(value))
            return key[-1]
        if item_of(value) is not None:
            self.values.numbers_used = True
            key.append(float)
            return ItemOf(self.alias(value.node.tensor))
        if expression_of(value) is not None:
            return self._encode(self.values.use(value.node, key[0]), key, given)
        if kind is Expression:
            key.append(type(value.value))
            return value
        if kind is torch.Generator:
            key.append(kind)
            return self.generators.of(value, self._where)
        if self.sizes is not None and isinstance(value, SYMBOLS):
            self.values.numbers_used = True
            return self.sizes.encode(value, key)
        refuse_native_argument(key[0], value, self._where)
        key.append(object())  # an argument of another type: never the same twice
        return value

    def _view(self, func: Any, args: Any, kwargs: Any, op_args: Any, op_kwargs: Any) -> Any:
        ghosts = [self._ghost(a) for a in args]
        try:
            result = func(*ghosts, **kwargs)
        except RuntimeError:
            refuse_memory_behind(func, ghosts, kwargs, self._storage_of, self.memory, self._where)
            raise
        parent = next((a for a in op_args if isinstance(a, Alias)), None)
        index = len(self.ops)
        version = version_of(self.objects[parent.object]) if parent is not None else 0

        def register(value: Any, position: int) -> Any:
            if isinstance(value, torch.Tensor):
                return self.register(value, parent=parent, op=index, position=position)
            return [register(v, i) for i, v in enumerate(value)]

        self.append(func, op_args, op_kwargs, register(result, 0), is_view=True, version=version)
        return result

    def _without_storages(self, func: Any, args: Any, op_args: Any) -> tuple[Any, Any, Any]:
        """`set_` to a bare storage, as `set_` to a tensor that is there already."""
        if len(args) < 2 or not isinstance(args[1], torch.UntypedStorage):
            return func, args, op_args
        known = self._storage_of.get(storage_key(args[1]))
        if known is None:
            raise CaptureError(
                f"the function takes over a storage that it was not given.\n{self._where()}\n"
                "Pass the tensor that has this storage as an argument."
            )
        first = self.memory[known].root
        root = self.objects[first.object]
        items = args[1].nbytes() // root.dtype.itemsize
        geometry = args[2:] if len(args) > 2 else (0, [items], [1])
        func = aten.set_.source_Tensor_storage_offset
        return func, (args[0], root, *geometry), (op_args[0], first, *geometry)

    def _change_metadata(
        self, func: Any, args: Any, kwargs: Any, op_args: Any, op_kwargs: Any, given: list[torch.Tensor]
    ) -> Any:
        target, before = given[0], op_args[0]
        if self.phase and before.storage.kind == "input":
            raise CaptureError(
                f"backward changes the geometry of an input.\n{self._where()}\nChange that of a view of it."
            )
        if func in SETS:
            check_history(given, self._where)
        num_bytes = target.untyped_storage().nbytes()
        ghosts = [target, *(self._ghost(a) for a in args[1:])]
        try:
            with memory_of(target) if func in RESIZES else nullcontext():
                result = func(*ghosts, **kwargs)
        except RuntimeError:
            refuse_memory_behind(func, ghosts, kwargs, self._storage_of, self.memory, self._where)
            raise
        if func in SETS:
            check_shape(before, target, self._where)
        storage = self._storage_of.get(storage_key(target))
        if storage is not None and target.untyped_storage().nbytes() > num_bytes and storage is before.storage:
            self.memory[storage].is_grown = True
        takes = next((a for a in op_args[1:] if isinstance(a, Alias)), None)
        parent = before if storage is before.storage else takes
        after = self.register(target, parent=parent, op=len(self.ops))
        self.note_moved(target, before, after, self._where(), self.ops)
        adds_node = target.requires_grad and torch.is_grad_enabled() and view_base(target) is None
        self.append(func, op_args, op_kwargs, after, renames=before, adds_node=adds_node)
        return target if isinstance(result, torch.Tensor) else result

    def _outcome(self, func: OpOverload, key: Any, args: Any, kwargs: Any) -> Outcome:
        """What an op returns, as far as that can be said without data."""
        try:
            return self.table.outcome(key, func, args, kwargs, self.device.true)
        except (DataDependentOutputException, DynamicOutputShapeException) as error:
            found = outcome_by_value(func, args, kwargs, self.values.known) or largest_outcome(func, args, self.device)
            found = found or self.values.questions.outcome(func, args, kwargs)
            if found is None:
                raise CaptureError(SHAPE_DEPENDS_ON_DATA.format(func=func, where=self._where())) from error
            return found
        except (UnsupportedOperatorException, NotImplementedError) as error:
            raise CaptureError(f"{func} cannot be recorded without data: {error}\n{self._where()}") from error
        except RuntimeError:
            devices = {self.device.shown(t.device) for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
            if len(devices) < 2:
                raise
            places = " and ".join(sorted(map(str, devices), key=lambda name: name == "cpu"))
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but those given to {func} are on {places}.\n"
                f"{self._where()}\nMove them to one device with .to()."
            ) from None

    def _compute(
        self,
        func: OpOverload,
        kind: Kind,
        key: Any,
        given: list[torch.Tensor],
        op_args: Any,
        op_kwargs: Any,
        args: Any,
        kwargs: Any,
    ) -> Any:
        if func in _PUTS and self.values.may_ask and not self.phase:
            self._ask_for_rows(args)
        outcome = self._outcome(func, key, args, kwargs)
        if outcome.resized:
            return self._resize_first(outcome, func, given, args, kwargs)
        writes = tuple(v for v in written(func, op_args, op_kwargs) if isinstance(v, Alias))
        index = len(self.ops)
        result = make(outcome.result, given, self.device)
        counter = iter(range(1 << 30))

        def register(value: Any) -> Any:
            if isinstance(value, torch.Tensor):
                position = next(counter)
                known = self._alias_of.get(id(value))
                return known if known is not None else self.register(value, op=index, position=position)
            if isinstance(value, (list, tuple)):
                return [register(v) for v in value]
            return value

        outputs = register(result)
        goes_on = GIVES_SIZE_ON.get(func) and any(self.alias(t).storage in self.unsized for t in given)
        if func in SIZE_UNKNOWN or goes_on:
            self.unsized.update(alias.storage for alias in aliases_in(outputs))
        for alias in writes:
            self.memory[alias.storage].num_writes += 1
            target = self.objects[alias.object]
            self._bumps.note(index, target, self.phase)
            if kind.bumps_itself:
                set_version(target, version_of(target) + 1)
            self.check_not_shown(alias, self._where)
        redraws = self._draw(index, func, key, op_args, op_kwargs) if kind.is_random else None
        self.append(func, op_args, op_kwargs, outputs, writes=writes, redraws=redraws)
        self.values.questions.settle(index, outcome, aliases_in(outputs))
        return result

    def _ask_for_rows(self, args: Any) -> None:
        """How many elements a mask selects: a write there has a gradient of that size."""
        masks = [one for one in args[1] if isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8)]
        is_needed = torch.is_grad_enabled() and self._ghost(args[2]).requires_grad
        if is_needed and any(self.values.known(one) is None for one in masks):
            self.dispatch(aten.index.Tensor, (args[0], args[1]), {})

    def _draw(self, index: int, func: OpOverload, key: Any, args: Any, kwargs: Any) -> int | None:
        """The earlier op whose numbers an op repeats; None if it draws new ones."""
        if not draws(func, args, kwargs):
            return None
        generator = generator_in(args, kwargs)
        self.generators.note(generator)
        return self.draws.repeats(index, key, generator, self._where, goes_by_data=goes_by_data(func))

    def _resize_first(self, outcome: Outcome, func: Any, given: list[torch.Tensor], args: Any, kwargs: Any) -> Any:
        """An `out=` argument of another shape is resized, then written: two ops; the first bumps no version."""
        for place, made in outcome.resized:
            target = given[place]
            num_uses = sum(storage_key(t) == storage_key(target) for t in given)
            is_expanded = any(
                stride == 0 and size > 1 for size, stride in zip(target.size(), target.stride(), strict=True)
            )
            if target.requires_grad or num_uses > 1 or is_expanded:
                why = "is expanded" if is_expanded else "needs a gradient or is read too"
                raise CaptureError(
                    f"an out= argument {self.alias(target).spec} is resized that {why}.\n"
                    f"{self._where()}\nGive it the shape of the result, or leave out= away."
                )
            self._change_silently(aten.resize_.default, target, list(made.size))
            if target.stride() != made.stride:  # kernels lay out what they resize as they do a new result
                self._change_silently(aten.as_strided_.default, target, list(made.size), list(made.stride))
        return self.dispatch(func, args, kwargs)

    def _change_silently(self, func: Any, target: torch.Tensor, *geometry: Any) -> None:
        self.silent.add(len(self.ops))
        self._change_metadata(func, (target, *geometry), {}, (self.alias(target), *geometry), {}, [target])

    def append(self, func: Any, args: Any, kwargs: Any, outputs: Any, **more: Any) -> None:
        op = Op(
            index=len(self.ops),
            func=func,
            args=args,
            kwargs=kwargs,
            outputs=outputs,
            phase=self.phase,
            grad_enabled=torch.is_grad_enabled(),
            origin=self._origins.now(self.phase, self.module),
            **more,
        )
        self.ops.append(op)

    def _ghost(self, value: Any) -> Any:
        """The ghost of an argument that may be a real tensor."""
        if isinstance(value, torch.Tensor) and id(value) not in self._alias_of:
            return self.objects[self.alias(value).object]
        return value

    # -- data -----------------------------------------------------------------------------------------

    def _constant(self, real: torch.Tensor) -> torch.Tensor:
        """A tensor built from Python numbers inside the function: its data is part of the program."""
        ghost = new_ghost(real.size(), real.stride(), real.dtype, real.device)
        alias = self.register(ghost, kind="constant")
        with no_dispatch_modes():
            self.constants[alias.storage] = real.detach()
        return ghost

    def _note_live(self, node: Any) -> None:
        """Inputs kept as attributes of a custom Function's context are read as they are when backward runs."""
        self.has_functions = True
        for value in getattr(node, "__dict__", {}).values():
            if isinstance(value, torch.Tensor) and id(value) in self._alias_of:
                storage = self._alias_of[id(value)].storage
                if storage.kind == "input":
                    self.live.add(storage)

    def here(self) -> str:
        """The user's line that is running, or, in backward, the one that is being differentiated."""
        return f"  at {self._origins.now(self.phase, self.module)}" if self.phase else where(self.module)

    def _where(self) -> str:
        return where(self.module)
