"""Intercept: stands between the user's code and torch while recording.

Real tensors that the function reaches for (parameters, closures, globals) are swapped for their ghosts before autograd
sees them, so no real tensor is ever touched, in this thread or another; and what a dispatch mode cannot see is seen
here: `x.data = y`, `.grad`, and reading data that a ghost does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import BuiltinMethodType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from foregrad.core.errors import CaptureError
from foregrad.core.history import gets_no_gradient, is_leaf
from foregrad.core.wrapper_subclass import is_wrapper, parts
from foregrad.record.control_flow import CONTROL_FLOW, run_control_flow
from foregrad.record.data_reads import Values
from foregrad.record.frames import user_frame
from foregrad.record.ghosts.devices import ASKS
from foregrad.record.ghosts.sparse import embedding
from foregrad.record.ghosts.table import written
from foregrad.record.lift.grads import Grads
from foregrad.record.lift.input_questions import Questions
from foregrad.record.lift.inputs import Inputs
from foregrad.record.lift.wrapper_views import WrapperViews
from foregrad.record.ops import Origin
from foregrad.record.origins import where
from foregrad.record.packed_sequences import PACKED_SEQUENCES
from foregrad.record.python.clocks import Moment
from foregrad.record.python.patched_methods import originals
from foregrad.record.recorder import Recorder
from foregrad.record.symbols.data_values import number as number_in
from foregrad.record.symbols.numbers import Float, Int
from foregrad.record.symbols.sizes import SHAPES, with_methods
from foregrad.record.tensor_from_list import has_tensors, tensor_of
from foregrad.torch_private.autograd_engine import with_engine
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.fake_tensors import FakeTensor
from foregrad.torch_private.ops import FUSED_OPTIMIZERS
from foregrad.torch_private.tensors import view_base
from foregrad.torch_private.transforms import is_functorch_wrapped_tensor

Tensor = torch.Tensor


class SetData:
    """Stands for `x.data = y` in a recording."""

    __name__ = "set_data"


SET_DATA: Any = SetData()


class Intercept(TorchFunctionMode):
    """Swaps real tensors for ghosts in every call to torch, and handles the calls that need care."""

    def __init__(self, recorder: Recorder, inputs: Inputs, grads: Grads) -> None:
        super().__init__()
        self._recorder = recorder
        self._inputs = inputs
        self._grads = grads
        self.retained: list[tuple[Tensor, Origin]] = []  # no leaves, told to keep their gradient, and where
        self.flags: list[tuple[int, int, bool]] = []  # objects told to require a gradient or not, and after which op
        self.looks = WrapperViews()
        self.questions = Questions(recorder, inputs)
        self.has_attention = False
        self.hooked: list[tuple[str, Any, Any]] = []  # objects whose methods, in C, are hooks, and code that says so
        self.has_hooks = False  # on tensors that the function makes
        self.unshared: set[int] = set()  # ops that stand for `x.data`, which shares no version counter
        self._replaced = dict(originals())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        func = self._replaced.get(func, func)
        if self._recorder.is_aside:
            return func(*args, **(kwargs or {}))
        args = self._swap(args)
        kwargs = self._swap(kwargs) if kwargs else {}
        if func in _ENGINE:
            return self._run_engine(func, args, kwargs)
        elsewhere = self._recorder.device
        if elsewhere.true is not None:
            if func in ASKS and len(args) == 1 and not kwargs:
                return elsewhere.answer(func, args)
            if elsewhere.is_autocast:
                refuse(f"uses autocast on {elsewhere.true.type}", "Cast with .to(dtype), or leave this part outside.")
            func, args, kwargs = elsewhere.inward(func, args, kwargs)
        if kwargs and self._recorder.values.mirror is not None:
            kwargs = {k: self._as_number(v) if k in ("alpha", "value") else v for k, v in kwargs.items()}
        if func in SHAPES and self._recorder.sizes is not None:
            return with_methods(func(*args, **kwargs))
        special = _SPECIAL.get(func)
        first: Any = args[0] if args else next(iter(kwargs.values()), None)
        self.has_attention |= func is torch.nn.functional.scaled_dot_product_attention
        if special is not None and not (isinstance(first, Tensor) and is_functorch_wrapped_tensor(first)):
            if not is_wrapper(first) or special in _ON_WRAPPERS:
                return special(self, func, args, kwargs)
            self._check_wrapper(func, special, first, args)
        result = func(*args, **kwargs)
        if is_wrapper(result) or type(result) in (tuple, list):
            self.looks.note(func, args, kwargs, result)
        elif len(args) == 1 and not kwargs and (not isinstance(result, Tensor) or func == view_base):
            return self.questions.asked(func, first, result) if isinstance(first, Tensor) else result
        return result

    def _check_wrapper(self, func: Any, special: Any, tensor: Tensor, args: Any) -> None:
        """Refuse what is not done on tensors that wrap others: the rest they do themselves."""
        if func is Tensor.requires_grad_ and tensor.requires_grad is (args[1] if len(args) > 1 else True):
            return  # as it is already
        is_input = self._inputs.outer_of(tensor) is not None
        if special in _NOT_ON_WRAPPERS or (is_input and special in _NOT_ON_WRAPPED_INPUTS):
            name = getattr(func, "__self__", func).__name__  # of a property, or of the method itself
            refuse(f"uses `{name}` of a {type(tensor).__name__}", "Do this outside, or with a plain tensor.")

    def _swap(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            if self._recorder.knows(value) or is_functorch_wrapped_tensor(value):
                return value
            found = self._inputs.find(value)
            if found is not None:
                return found.ghost
            return value if self._is_ours(value) else self._inputs.lift(value)
        kind = type(value)
        if kind is tuple:
            return tuple([self._swap(v) for v in value])
        if kind is list:
            return [self._swap(v) for v in value]
        if kind is dict:
            return {k: self._swap(v) for k, v in value.items()}
        if kind is Moment:
            refuse("computes with what a clock says", "Read the clock outside, and pass the time as a tensor.")
        return value

    def swapped(self, value: Any) -> Any:
        """What a custom Function is given for an argument."""
        if not isinstance(value, Tensor) or self._recorder.is_aside:
            return value
        with no_function_modes():
            return self._swap(value)

    def _run_engine(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Real tensors are swapped in what the engine runs too: hooks, Functions, what a checkpoint computes again."""
        if func is Tensor.backward:
            func, kwargs = torch.autograd.backward, {**kwargs, "grad_tensors": kwargs["gradient"]}
            del kwargs["gradient"]
        return with_engine(func, self._around_engine)(*args, **kwargs)

    def _around_engine(
        self, sources: Any, retain_graph: bool, create_graph: bool, targets: Any, is_adding: bool
    ) -> AbstractContextManager[None]:
        retained = [tensor for tensor, _ in self.retained]
        if is_adding:  # torch tells such tensors to keep their gradient
            named = [target for target in targets if isinstance(target, Tensor) and not is_leaf(target)]
            self.retained += [(target, Origin(*user_frame(2), "")) for target in named]
            retained += named
        self._grads.open_retained(retained)
        self._grads.beyond.check_targets(sources, targets)
        return self._in_engine(retain_graph, create_graph, targets)

    @contextmanager
    def _in_engine(self, retain_graph: bool, create_graph: bool, targets: Any) -> Iterator[None]:
        with self._grads.beyond.run(retain_graph, create_graph, targets), self:
            yield

    def _is_ours(self, value: Tensor) -> bool:
        """Whether an unknown tensor came from the recording: autograd unpacks copies of ghosts."""
        return value.layout is torch.strided and any(map(self._recorder.owns, parts(value)))

    def set_data(self, func: Any, args: Any, kwargs: Any) -> None:
        target, source = args
        before, taken = self._recorder.alias(target), self._recorder.alias(source)
        if target.requires_grad and (before.size, before.dtype) != (taken.size, taken.dtype):
            refuse(
                f"gives a tensor {before.spec} that needs a gradient the data of a {taken.spec}",
                "Give it data of its own shape and dtype.",
            )
        func(target, source)
        index = len(self._recorder.ops)
        after = self._recorder.register(target, storage=taken.storage, parent=taken, op=index)
        self._recorder.note_moved(target, before, after, self._recorder.here(), self._recorder.ops)
        self._recorder.append(SET_DATA, (before, taken), {}, after, renames=before)

    def detach_in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """`detach_` changes no memory and reaches no dispatch mode. A leaf has no history to lose, only its flag."""
        if args[0].is_leaf and view_base(args[0]) is None:
            return self.require_grad(func, args, kwargs)
        before = self._recorder.alias(args[0])
        result = func(*args, **kwargs)
        after = self._recorder.register(args[0], parent=before, op=len(self._recorder.ops))
        self._recorder.append(torch.ops.aten.detach_.default, (before,), {}, after, renames=before)
        return result

    def get_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args)
        self.unshared.add(len(self._recorder.ops) - 1)
        return result

    def get_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        lifted = self._inputs.entered(args[0])
        if lifted is not None:
            self._grads.open(lifted)
        return func(*args)

    def set_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        lifted = self._inputs.entered(args[0])
        if lifted is not None:
            self._grads.replace(lifted)
        return func(*args)

    def retain_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        result = func(*args, **kwargs)
        if args[0].retains_grad:
            self.retained.append((args[0], Origin(*user_frame(2), "")))
        return result

    def register_hook(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A hook on an input belongs to the real tensor, for as long as that lives: each call registers it anew."""
        tensor, hook = args[0], args[1] if len(args) > 1 else kwargs["hook"]
        lifted = self._grads.hooks.checked(self._inputs.of_ghost(tensor))
        if lifted is not None and not lifted.was_rebased and not self._holds_ghosts(hook):
            return self._grads.hooks.register(lifted, hook)
        self.has_hooks = True
        if isinstance(hook, BuiltinMethodType):
            self.hooked.append((hook.__qualname__, hook.__self__, user_frame(2)[0]))
        return func(*args, **kwargs)

    def register_late_hook(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A hook that runs after the engine has added to a .grad, on an input, would run outside too."""
        if self._inputs.of_ghost(args[0]) is not None:
            refuse("registers a hook on an input that runs after its .grad is set", "Register it outside.")
        return func(*args, **kwargs)

    def _holds_ghosts(self, hook: Any) -> bool:
        cells = getattr(hook, "__closure__", None) or ()
        return any(isinstance(c.cell_contents, Tensor) and self._recorder.knows(c.cell_contents) for c in cells)

    @property
    def values(self) -> Values:
        return self._recorder.values

    def tensor_split(self, func: Any, args: Any, kwargs: Any) -> Any:
        """With a tensor of indices torch reads them past the dispatcher; known ones are given as numbers."""
        for place, cuts in enumerate(args[1:2], 1):
            if isinstance(cuts, Tensor):
                args = (*args[:place], self._recorder.values.of(cuts).tolist(), *args[place + 1 :])
        for name in ("tensor_indices_or_sections", "indices"):
            if isinstance(kwargs.get(name), Tensor):
                kwargs = {**kwargs, name: self._recorder.values.of(kwargs[name]).tolist()}
        return func(*args, **kwargs)

    def item(self, func: Any, args: Any, kwargs: Any) -> Any:
        """The value of a small tensor of declared state is a number that each call reads; in a step that of any other
        is a number of the program."""
        values = self._recorder.values
        number = values.number(args[0])
        if number is not None:
            return number
        may_ask = values.mirror is not None or values.may_ask
        if not may_ask or args[0].numel() != 1 or values.known(args[0]) is not None:
            return func(*args)
        if values.gives_floats:
            return func(*args)
        if not args[0].is_floating_point():
            return self.truth(func, args, kwargs) if args[0].dtype == torch.bool else func(*args)
        return number_in(args[0].detach().reshape(()).double(), values)

    def truth(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A branch asks whether a tensor is true, and not for the number in it."""
        found = self._recorder.values.truth(args[0]) if args[0].numel() == 1 else None
        return func(*args) if found is None else found

    def format(self, func: Any, args: Any, kwargs: Any) -> Any:
        """A number is formatted as one; for any other tensor torch turns modes off and prints it."""
        return func(*args, **kwargs) if args[0].dim() == 0 else self.read(func, args, kwargs)

    def control_flow(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Branches and loops that torch has ops for run in Python, which may ask the data."""
        start = len(self._recorder.ops)

        def ghost_from_outside(tensor: Tensor) -> Tensor | None:
            if isinstance(tensor, FakeTensor) or is_functorch_wrapped_tensor(tensor):
                return None
            alias = self._recorder.alias(self._swap(tensor))
            return self._recorder.objects[alias.object] if alias.op is None or alias.op < start else None

        return run_control_flow(func, args, kwargs, self, ghost_from_outside)

    def _as_number(self, value: Any) -> Any:
        """A small tensor that torch would read to have a number."""
        number = self._recorder.values.number(value) if isinstance(value, Tensor) and value.dim() == 0 else None
        return value if number is None else number

    def fused(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Torch takes no symbols for the numbers of a fused optimizer; the recorder does."""
        if not any(isinstance(v, (Float, Int)) for v in kwargs.values()):
            return func(*args, **kwargs)
        overloads = FUSED_OPTIMIZERS[func]
        op = overloads.tensor_lr if isinstance(kwargs["lr"], Tensor) else overloads.default
        with no_dispatch_modes():
            self._recorder.dispatch(op, args, kwargs)
            torch.autograd.graph.increment_version(written(op, args, kwargs))
        return None

    def from_data(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Lists of numbers, in which there may be tensors too."""
        args, kwargs = (*args, *(v for k, v in kwargs.items() if k == "data")), {**kwargs}
        kwargs.pop("data", None)
        if has_tensors(args[-1]):
            requires_grad = kwargs.pop("requires_grad", False)
            known = self._recorder.values.known
            made = tensor_of(lambda value: self._from_numbers(func, (*args[:-1], value), kwargs), args[-1], known)
            return made.requires_grad_() if requires_grad else made
        return self._from_numbers(func, args, kwargs)

    def _from_numbers(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Numbers become a tensor on the CPU, which is then moved: on meta torch would forget them."""
        if isinstance(args[-1], (Float, Int)) and func is not Tensor.new_tensor:
            wanted = None if isinstance(args[-1], Float) else torch.int64
            return torch.scalar_tensor(args[-1], **{"dtype": wanted, **kwargs})
        options = {**kwargs}
        wanted = options.pop("device", args[0].device if func is Tensor.new_tensor else None)
        if wanted is None or torch.device(wanted).type == "cpu" or isinstance(args[-1], Tensor):
            return func(*args, **kwargs)
        requires_grad = options.pop("requires_grad", False)
        if func is Tensor.new_tensor:
            options = {"dtype": args[0].dtype, **options}
        return torch.tensor(args[-1], device="cpu", **options).to(wanted).requires_grad_(requires_grad)

    def require_grad(self, func: Any, args: Any, kwargs: Any) -> Any:
        before, number = args[0].requires_grad, self._recorder.alias(args[0]).object
        with no_dispatch_modes():
            if gets_no_gradient(args[0]):
                refuse("tells a view made under no_grad to require a gradient", "Make a copy first, with clone().")
        result = func(*args, **kwargs)
        if args[0].requires_grad is not before:
            self.flags.append((number, len(self._recorder.ops) - 1, not before))
        lifted = self._inputs.of_ghost(args[0])
        if lifted is not None and not lifted.is_leaf and args[0].requires_grad and not before:
            refuse(
                f"cuts an input {lifted.spec} off from its history in place, and tells it to require a gradient",
                "Make a new tensor, with .detach().requires_grad_(), or do it outside.",
            )
        if lifted is not None and not lifted.required_grad:
            with no_dispatch_modes():
                self._grads.watch(lifted)
        return result

    def check_in_program(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Functions of torch that look at data only to refuse bad values: the program does that at each call."""
        self._recorder.values.assumed = _CHECKS[func]
        try:
            return func(*args, **kwargs)
        finally:
            self._recorder.values.assumed = {}

    def read(self, func: Any, args: Any, kwargs: Any) -> Any:
        name, tensor = getattr(func, "__name__", str(func)).strip("_"), args[0]
        if func in (Tensor.tolist, Tensor.numpy, Tensor.__array__):
            asked_by = "numpy.asarray()" if func is Tensor.__array__ else f"{name}()"
            value = self._recorder.values.of(tensor, asked_by)
            with no_dispatch_modes():  # torch would take its own steps to an array for ops of the function
                found = func(value, *args[1:], **kwargs)
            return found if func is Tensor.tolist else self._recorder.shown_to_numpy(tensor, found)
        if func is Tensor.__deepcopy__ and not (tensor.is_leaf and type(tensor) is Tensor):
            return func(*args, **kwargs)  # type: ignore[no-untyped-call]  # an error of eager's, or made of ops
        return refuse(
            f"reads the data of a tensor {self._recorder.alias(tensor).spec} ({name})",
            "Capture has no data. Return the tensor and read it outside the captured function.",
        )


def refuse(what: str, instead: str) -> None:
    raise CaptureError(f"the function {what}.\n{where('')}\n{instead}")


#: Functions of torch that run the autograd engine.
_ENGINE = {Tensor.backward, torch.autograd.backward, torch.autograd.grad}

_COV = {torch.ops.aten.ge.Scalar: True, torch.ops.aten.ne.Scalar: True, torch.ops.aten.le.Scalar: False}

#: Functions of torch that check values, and what their comparisons find if all is well.
_CHECKS: dict[Any, dict[Any, bool]] = {
    torch.nn.functional.gaussian_nll_loss: {torch.ops.aten.any.default: False},
    **dict.fromkeys((torch.cov, Tensor.cov), _COV),
}

_SPECIAL: dict[Any, Callable[..., Any]] = {
    Tensor.data.__set__: Intercept.set_data,  # type: ignore[attr-defined]
    Tensor.data.__get__: Intercept.get_data,  # type: ignore[attr-defined]
    Tensor.grad.__get__: Intercept.get_grad,  # type: ignore[union-attr]
    Tensor.grad.__set__: Intercept.set_grad,  # type: ignore[union-attr]
    Tensor.requires_grad.__set__: Intercept.require_grad,  # type: ignore[attr-defined]
    Tensor.requires_grad_: Intercept.require_grad,
    Tensor.detach_: Intercept.detach_in_place,
    **dict.fromkeys((torch.tensor, torch.as_tensor, Tensor.new_tensor), Intercept.from_data),
    **dict.fromkeys(CONTROL_FLOW, Intercept.control_flow),
    Tensor.item: Intercept.item,
    Tensor.__bool__: Intercept.truth,
    Tensor.__format__: Intercept.format,
    **dict.fromkeys(FUSED_OPTIMIZERS, Intercept.fused),
    Tensor.register_hook: Intercept.register_hook,
    Tensor.register_post_accumulate_grad_hook: Intercept.register_late_hook,
    Tensor.retain_grad: Intercept.retain_grad,
    **dict.fromkeys((torch.tensor_split, Tensor.tensor_split), Intercept.tensor_split),
    torch.nn.functional.embedding: embedding,
    **PACKED_SEQUENCES,
    **dict.fromkeys(_CHECKS, Intercept.check_in_program),
    **dict.fromkeys(
        (
            Tensor.tolist,
            Tensor.numpy,
            Tensor.data_ptr,
            Tensor.__array__,
            Tensor.__dlpack__,
            Tensor.__repr__,
            Tensor.__deepcopy__,
            Tensor.__reduce_ex__,
            Tensor.storage,
            Tensor.untyped_storage,
            Tensor.share_memory_,
        ),
        Intercept.read,
    ),
}

_NOT_ON_WRAPPERS = {
    Intercept.set_data,
    Intercept.require_grad,
    Intercept.detach_in_place,
    Intercept.retain_grad,
    Intercept.read,
}
_NOT_ON_WRAPPED_INPUTS = {Intercept.register_hook, Intercept.register_late_hook}
_ON_WRAPPERS = {Intercept.get_grad, Intercept.set_grad}
