"""Recording: one run of the user's function on ghosts, kept so that any backward of it can be recorded later.

The ghosts keep eager's own autograd graph alive. A backward is the autograd engine running over that graph under the
same recorder; a backward from other outputs, or one that is itself differentiated, is one more run of the engine. The
user's function is never run again.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointError

from foregrad.core.errors import CaptureError
from foregrad.core.size import thawed
from foregrad.core.spec import Spec, contiguous_stride
from foregrad.core.wrapper_autograd import Whole
from foregrad.core.wrapper_subclass import has_parts, is_wrapper
from foregrad.process.forks import lock
from foregrad.process.garbage_collection import young_objects
from foregrad.record.frames import raising_frame, source_of
from foregrad.record.ghosts.allocate import new_ghost
from foregrad.record.intercept import Intercept
from foregrad.record.lift.argument_objects import GivenArguments
from foregrad.record.lift.grads import Grads
from foregrad.record.lift.inputs import Inputs
from foregrad.record.ops import Alias, Op, Origin
from foregrad.record.python.called_modules import CalledModules
from foregrad.record.python.clocks import clocks_give_moments, refuse_moment
from foregrad.record.python.container_arguments import ContainerArguments, at, named
from foregrad.record.python.result_forms import FormMaker, ResultForm, settled
from foregrad.record.python.user_backwards import Backwards
from foregrad.record.python.world_reads import FileRead
from foregrad.record.recorder import Recorder
from foregrad.record.session import CHECKPOINT, NO_ANOMALIES, NO_TORCH_COMPILE
from foregrad.record.symbols.data_values import item_of, items_in_max_and_min
from foregrad.record.symbols.dimensions import Sizes, fakes
from foregrad.record.symbols.numbers import SymbolicNumbers, expression_of, numbers_in_math
from foregrad.record.user_objects import Held, UserObjects
from foregrad.record.wrapper_results import WrappedResult, WrappedResults
from foregrad.torch_private.autograd import enter_again, no_saved_tensor_hooks
from foregrad.torch_private.autograd_engine import accumulate, functions_take, run_engine
from foregrad.torch_private.dispatch import autocast_disabled, no_dispatch_modes
from foregrad.torch_private.pytree import (
    TreeSpec,
    keystr,
    open_objects,
    tree_flatten,
    tree_flatten_with_path,
    tree_leaves,
)
from foregrad.torch_private.tensors import NO_MEMORY

_PLAIN_OUTPUTS = (
    int,
    float,
    bool,
    str,
    complex,
    type(None),
    torch.dtype,
    torch.device,
    torch.layout,
    torch.Size,
    bytes,
)


def _is_named(value: Any) -> bool:
    """Whether a value is a class that a module has under its name."""
    found: Any = sys.modules.get(value.__module__) if isinstance(value, type) else None
    for name in value.__qualname__.split(".") if found is not None else ():
        found = getattr(found, name, None)
    return found is not None and found is value


def _is_shape(value: Any) -> bool:
    return isinstance(value, torch.Size)


#: What the engine says of a backward that eager would refuse too.
_EAGERS = ("backward through the graph a second time", "modified by an inplace operation")

#: What a reentrant checkpoint says if gradients are asked for at some tensors.
_REENTRANT = "When use_reentrant=True, torch.utils.checkpoint is incompatible"

#: What a backward may raise, to be raised again when it is asked for.
_RAISED = (RuntimeError, CaptureError, NotImplementedError, ValueError, TypeError)

#: For each source of a backward, the strides of its tangent; None where no tangent arrives.
Layouts = tuple[tuple[int, ...] | None, ...]


@dataclass(frozen=True, slots=True)
class Tangent:
    """A ghost for the gradient that arrives from outside."""

    ghost: torch.Tensor
    alias: Alias
    spec: Spec


@dataclass(frozen=True, slots=True)
class Backward:
    """One run of the engine: the ops from `start` on, and the gradient that each slot got."""

    phase: int
    start: int
    ops: tuple[Op, ...]  # all ops up to the end of this backward
    tangents: tuple[Tangent | None, ...]
    arrived: tuple[torch.Tensor | None, ...]  # at each slot
    gradients: tuple[torch.Tensor | None, ...]  # the same, in parts where they wrap others
    aliases: tuple[Alias | None, ...]  # of these
    wholes: tuple[Whole | None, ...]  # how what arrived is made of its parts; empty if all is plain
    error: Exception | None = None
    earlier: Backward | None = None  # the backward that this one differentiates

    @property
    def chain(self) -> tuple[Backward, ...]:
        """All backwards up to this one, the first first."""
        return (*(self.earlier.chain if self.earlier else ()), self)


class Recording:
    """The user's function on ghosts: `outputs` is what it returned, `recorder.ops` what it did."""

    def __init__(self, objects: UserObjects, definition: str, sizes: Sizes | None = None) -> None:
        self.definition = definition  # the line of the function, as a line of an error
        self.lock = lock()  # for one backward at a time, of whichever stage
        self.sizes = sizes
        self.recorder = Recorder(lambda real: self.inputs.lift(real), sizes, objects.watched.executed)
        self.objects = Held(objects)
        if sizes is not None:
            sizes.here = self.recorder.here
        self.inputs = Inputs(self.recorder, self.objects)
        self.grads = Grads(self.recorder, self.inputs, self.objects)
        self.intercept = Intercept(self.recorder, self.inputs, self.grads)
        self.wrapped = WrappedResults(self.recorder, self.inputs, self.intercept.looks, definition)
        self.modules = CalledModules(self.recorder, self.objects)
        self.numbers = SymbolicNumbers(lambda: self.recorder.module)
        self.backwards = Backwards(self.recorder.executed, self.intercept.hooked, self.objects)
        self.files: dict[str, FileRead] = {}  # that were read
        self.num_forward = 0
        self.outputs: list[Any] = []
        self.items: set[int] = set()  # places of outputs of which the number is returned
        self.structure: TreeSpec
        self.whole: TreeSpec | None = None  # of the result without its form, if a plain tree loses nothing
        self.form: ResultForm | None = None  # of a result that no plain tree can be
        self.leaves_grad_mode = True
        self.stores_something = False  # in modules or in declared state, whose attributes are as they were again
        self.accumulates = False  # whether backwards run others, so that gradients are found at leaves

    def forward(self, function: Callable[..., Any], given: GivenArguments, modes: AbstractContextManager[Any]) -> None:
        """Run the function on the ghosts of its arguments, with modes of torch."""
        mode = torch.is_grad_enabled()
        tensors = list({id(t): t for t in tree_leaves(given.tree) if isinstance(t, torch.Tensor)}.values())
        with fakes(self.sizes):
            self.inputs.lift_arguments(tensors, self.definition)
        real = named(given.args, given.kwargs)
        numbers = {p: self.numbers.read_given(p, at(real, p), text).symbol() for p, text in given.numbers.items()}
        copies = ContainerArguments(given.args, given.kwargs, given.opened, self.inputs.ghost_of, numbers)
        objects = self.objects.now
        objects.arguments, objects.watched.outside.copied = copies, copies.copied
        self.recorder.python_calls.copies = copies.copied
        try:
            with (
                no_saved_tensor_hooks(),
                clocks_give_moments(),
                objects.watched.watch(),
                self.recorder.draws.run(self.definition, self.recorder.generators.all),
                CHECKPOINT.by(enter_again),
                NO_TORCH_COMPILE.in_this_thread(),
                self.modules.watch(),
                self._numbers(),
                fakes(self.sizes),
                self.recorder,
                self.intercept,
                functions_take(self.intercept.swapped),
                self.recorder.executed,
                modes,
            ):
                result = function(*copies.args, **copies.kwargs)
            self.leaves_grad_mode = torch.is_grad_enabled()
            self.recorder.python_calls.is_closed = True
        except Exception as error:
            refusal = self._refusal(error)
            if refusal is None:
                raise
            raise refusal from error
        finally:
            self.grads.finish()
            torch.set_grad_enabled(mode)
        self.files |= objects.watched.anew.files
        self.recorder.check_moved()
        self._take_outputs(result, copies)
        self.num_forward = len(self.recorder.ops)

    @contextmanager
    def _numbers(self) -> Iterator[None]:
        """Python's own functions take the numbers of declared state, and sizes that vary, if there are any."""
        values = self.recorder.values
        has_items = values.mirror is not None or values.may_ask
        with (
            numbers_in_math() if has_items or self.sizes is not None or self.numbers.given else nullcontext(),
            items_in_max_and_min() if has_items else nullcontext(),
        ):
            yield

    @property
    def results(self) -> list[torch.Tensor]:
        """The tensors that the function returned; of those that wrap others, the parts."""
        made = [part for one in self.wrapped.made if isinstance(one, WrappedResult) for part in one.parts]
        return [*(o for o in self.outputs if isinstance(o, torch.Tensor)), *made]

    def _refusal(self, error: Exception) -> CaptureError | None:
        """An error that eager would not raise: it comes from how the function was recorded."""
        inputs, text = self.inputs.all, f"{error}\n  at {Origin(*raising_frame(error), '')}"
        if any(words in text for words in NO_MEMORY):
            return self._no_memory(error)
        if type(error).__module__.startswith("torch._dynamo"):
            return CaptureError(f"torch's compiler refuses a part of the function: {text}\nLeave this part outside.")
        if len({lifted.alias.storage for lifted in inputs}) < len(inputs) and "have been used in the graph" in text:
            return CaptureError(f"a gradient between two inputs that share memory: {text}\nPass one of them.")
        return None

    def _no_memory(self, error: Exception) -> CaptureError:
        """Someone wanted the memory of a ghost, past torch's ops: an extension in C++, dlpack, a constructor."""
        code, instruction = raising_frame(error)
        call = source_of(code, instruction)
        return CaptureError(
            f"the function reads the data of a tensor, which capture has not{f', by {call}' if call else ''}.\n"
            f"  at {Origin(code, instruction, '')}\nDo the same with ops of torch, wrap it as a custom op "
            "(torch.library), or return the tensor and read it outside the captured function."
        )

    def _take_outputs(self, result: Any, copies: ContainerArguments) -> None:
        """Take what the function returned, and what it has put into its arguments."""
        is_new = young_objects()
        maker = FormMaker(copies, is_new, self._is_ghost, self.definition)
        form = maker.made(result)
        if not maker.is_special:
            found = tree_flatten_with_path(open_objects(result, is_new, self._is_ghost, _is_shape), _is_shape)
            named, self.structure = [(f"result{keystr(path)}", leaf) for path, leaf in found[0]], found[1]
        if maker.is_special or maker.kept:
            named, self.form = maker.leaves, form
            self.whole = None if maker.is_special else self.structure
            self.structure = tree_flatten([None for _ in named])[1]
            self.objects.now.kept = tuple(maker.kept)
        self._take_leaves(named)

    def settle(self, watched: frozenset[int]) -> None:
        """Lists and dicts of a result that were there before come back as they are, if the guards watch them."""
        if self.form is None:
            return
        self.form = settled(self.form, watched)
        if self.whole is not None and not watched:
            self.structure, self.form = self.whole, None

    def _take_leaves(self, named: list[tuple[str, Any]]) -> None:
        self.wrapped.expect([leaf for _, leaf in named if isinstance(leaf, torch.Tensor) and is_wrapper(leaf)])
        for name, leaf in named:
            if isinstance(leaf, torch.Tensor) and has_parts(leaf):
                ghost = leaf if self.recorder.knows(leaf) else self.inputs.lift(leaf)
                self.outputs.append(self.wrapped.take(ghost, name))
            elif isinstance(leaf, torch.Tensor):
                ghost = leaf if self.recorder.knows(leaf) else self.inputs.lift(leaf)
                self.outputs.append(ghost)
            elif item_of(leaf) is not None:
                self.items.add(len(self.outputs))
                self.outputs.append(leaf.node.tensor)
            elif expression_of(leaf) is not None:
                self.outputs.append(leaf.node)
            elif self.sizes is not None and self.sizes.varies(leaf):
                self.outputs.append(self.sizes.plain(leaf))
            elif isinstance(leaf, _PLAIN_OUTPUTS) or _is_named(leaf):
                refuse_moment(leaf, name, self.definition)
                self.outputs.append(torch.Size(map(operator.index, leaf)) if isinstance(leaf, torch.Size) else leaf)
            else:
                what, instead = ("returns", "Return") if name.startswith("result") else ("stores", "Store")
                raise CaptureError(
                    f"the function {what} a {type(leaf).__name__} as {name}, which a program cannot hold.\n"
                    f"{self.definition}\n{instead} tensors, numbers, strings or None, in tuples, lists, dicts, "
                    "registered containers, or new objects of Python classes that nothing else holds."
                )
        self.wrapped.take_rewritten()

    def _is_ghost(self, leaf: Any) -> bool:
        return isinstance(leaf, torch.Tensor) and self.recorder.knows(leaf)

    def backward(
        self,
        sources: Sequence[torch.Tensor],
        slots: Sequence[Any],
        layouts: Layouts,
        *,
        reals: Sequence[torch.Tensor | None] = (),
        differentiable: tuple[bool, ...] | None = None,
        earlier: Backward | None = None,
    ) -> Backward:
        """Record the engine's run from `sources` to `slots`; `layouts` are the strides of the tangents that arrive.

        A custom Function may have been given a real tensor, past the reach of `Intercept`; `reals` are the tensors
        behind the first slots, and what arrives at them is added to what arrives at their ghosts. With `differentiable`
        the gradients can be differentiated again, with respect to the tangents that it names too.
        """
        start = self._rewind(earlier)
        phase = 1 if earlier is None else earlier.phase + 1
        for ghost, _ in self.intercept.retained:
            ghost.grad = None  # of another run of the engine
        with no_dispatch_modes(), fakes(self.sizes):
            needed = differentiable or (False,) * len(layouts)
            tangents = [
                None if stride is None else self._tangent(source, stride, is_needed)
                for source, stride, is_needed in zip(sources, layouts, needed, strict=True)
            ]
        self.recorder.phase = phase
        error: Exception | None = None
        arrived: Any = [None] * len(slots)
        gradients: list[Any] = arrived
        wholes: tuple[Whole | None, ...] = ()
        try:
            pairs = [(source, t) for source, t in zip(sources, tangents, strict=True) if t is not None]
            arrived = self._run(pairs, slots, reals, create_graph=differentiable is not None)
            gradients, wholes = self.wrapped.in_parts(arrived)
            self._refuse_written_results(start)
        except _RAISED as caught:
            error = self._refused(caught)
            del self.recorder.ops[start:]
        finally:
            self.recorder.phase = 0
        aliases = tuple(None if g is None else self.recorder.alias(g) for g in gradients)
        return Backward(
            phase=phase,
            start=start,
            ops=tuple(self.recorder.ops),
            tangents=tuple(tangents),
            arrived=tuple(arrived),
            gradients=tuple(gradients),
            aliases=aliases,
            wholes=wholes,
            error=error,
            earlier=earlier,
        )

    def _refuse_written_results(self, start: int) -> None:
        """A backward may write to inputs, and to what nobody else sees."""
        results = {self.recorder.alias(t).storage for t in self.results}
        for op in self.recorder.ops[start:]:
            if any(alias.storage in results and alias.storage.kind == "fresh" for alias in op.writes):
                raise CaptureError(
                    f"a backward writes to a result of the function.\n  at {op.origin}\nWrite to a copy of it."
                )

    def _run(
        self, pairs: Sequence[Any], slots: Sequence[Any], reals: Sequence[Any], *, create_graph: bool
    ) -> list[Any]:
        """What arrives at each slot, from sources with their tangents."""
        if not slots:
            return []
        raw = [place for place, real in enumerate(reals) if real is not None and real.requires_grad]
        sources, tangents = [source for source, _ in pairs], [tangent.ghost for _, tangent in pairs]
        if self.accumulates:
            with self.grads.collected(slots, reals) as added, self._engine(), self.recorder.executed:
                accumulate(sources, tangents, create_graph=create_graph)
            return added
        with self._engine(), self.recorder.executed:
            found = run_engine(sources, tangents, [*slots, *(reals[i] for i in raw)], create_graph=create_graph)
            arrived: list[Any] = list(found[: len(slots)])
            for place, extra in zip(raw, found[len(slots) :], strict=True):
                if extra is not None:
                    arrived[place] = extra if arrived[place] is None else arrived[place] + extra
        return arrived

    def _refused(self, error: Exception) -> Exception:
        """What a backward that raises this while it is recorded will raise when it is asked for."""
        is_eagers = any(words in str(error) for words in _EAGERS)
        is_first = (self.sizes is not None and not self.sizes.is_finished) or (
            self.numbers.given and self.objects.is_capturing
        )
        if is_first and not is_eagers:
            raise error  # it may be right for plain sizes and numbers
        return self._of_the_recording(error) or error.with_traceback(None)

    def _of_the_recording(self, error: Exception) -> CaptureError | None:
        """What to say of an error in backward that eager would not raise."""
        if any(words in str(error) for words in NO_MEMORY):
            return self._no_memory(error)
        if _REENTRANT in str(error):
            self.grads.is_nested = True
        if self.recorder.device.true is not None and isinstance(error, CheckpointError):
            return CaptureError(
                "a checkpoint compares what it computes again with what it computed first, by a device that is not "
                f'there at capture.\n{self.definition}\nPass determinism_check="none" to it.'
            )
        return None

    @contextmanager
    def _engine(self) -> Iterator[None]:
        with (
            self.recorder.without_memory(),
            autocast_disabled(),
            no_saved_tensor_hooks(),
            self.backwards.watch(),
            self.recorder.draws.run(self.definition, self.recorder.generators.all),
            CHECKPOINT.by(enter_again),
            NO_TORCH_COMPILE.in_this_thread(),
            NO_ANOMALIES.held(),
            fakes(self.sizes),
            self.recorder,
            self.intercept,
            functions_take(self.intercept.swapped),
        ):
            yield

    def error_of(self, run: Callable[[], Any]) -> Exception | None:
        """What a part of a backward raises; its ops are forgotten."""
        start = len(self.recorder.ops)
        try:
            with self._engine():
                run()
        except _RAISED as caught:
            return self._refused(caught)
        finally:
            self.recorder.forget(start)
        return None

    def _rewind(self, earlier: Backward | None) -> int:
        """Forget what was recorded after the ops that the next backward follows."""
        self.recorder.forget(self.num_forward)
        if earlier is not None:
            self.recorder.go_on_from(earlier.ops[self.num_forward :])
        return len(self.recorder.ops)

    def _tangent(self, source: torch.Tensor, stride: tuple[int, ...], is_differentiable: bool) -> Tangent:
        ghost = new_ghost(source.size(), thawed(stride), source.dtype, source.device)
        alias = self.recorder.register(ghost.requires_grad_(is_differentiable), kind="input")
        return Tangent(ghost, alias, alias.spec)


def usual_layouts(sources: Sequence[torch.Tensor]) -> tuple[tuple[int, ...], ...]:
    """The strides that tangents most often have: those of what they belong to, if it fills its memory."""
    specs = [Spec.of(source).frozen() for source in sources]
    return tuple(s.stride if s.is_dense else contiguous_stride(s.shape) for s in specs)
