"""A compiled backward, and what it is run on: tensors that were saved, and tangents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from foregrad.backends.guarded_code import Guarded
from foregrad.core.errors import BackwardError
from foregrad.core.spec import restrided
from foregrad.core.wrapper_autograd import Whole, whole
from foregrad.core.wrapper_subclass import coerced, is_wrapper
from foregrad.runtime.size_formulas import Dims
from foregrad.torch_private.autograd import packed_tensors
from foregrad.torch_private.dispatch import BELOW_AUTOGRAD, exclude_keys
from foregrad.torch_private.transforms import batch_of, is_transformed


@dataclass(frozen=True)
class CompiledBackward:
    """A backward for one choice of tangents: which saved values it takes, and which slots it fills."""

    run: Callable[..., Any]
    saved: tuple[int, ...]  # places among what the stage saved
    num_gradients: int
    strides: tuple[tuple[int, ...], ...]  # that it expects of its tangents
    checks: tuple[int, ...]  # places among what the stage saved that are unpacked for the check alone
    writes: tuple[int, ...]  # inputs that it writes, by their place among those that the stage has as they are
    error: Exception | None = None
    live: tuple[int, ...] = ()  # of these, those that it takes
    wholes: tuple[Whole | None, ...] = ()  # how each gradient is made; empty if all are plain
    at: Callable[[Dims], tuple[Any, ...]] | None = None  # where sizes vary: these strides, and sizes that it takes


def run_compiled(
    compiled: CompiledBackward, saved: Any, tangents: Sequence[Any], live: Sequence[Any], dims: Dims
) -> list[Any]:
    """Run a backward on what was saved and on the tangents that are defined."""
    defined = [t for t in tangents if t is not None]
    for i in compiled.checks:
        saved[i]
    values = [saved[i] for i in compiled.saved]  # may run hooks of the user's, with autograd
    found = [live[place] for place in compiled.live]
    strides, numbers = (compiled.strides, ()) if compiled.at is None else compiled.at(dims)

    def run(*tangents: Any) -> tuple[Any, ...]:
        given = [restrided(t, stride) for t, stride in zip(tangents, strides, strict=True)]
        return runner_for(compiled.run, given)(*values, *numbers, *found, *given)

    with exclude_keys(BELOW_AUTOGRAD):
        results = each_example(run, defined)
    with torch.no_grad():
        for place, value in zip(compiled.writes, results[compiled.num_gradients :], strict=True):
            live[place].copy_(value)
    return whole(results[: compiled.num_gradients], compiled.wholes)


def each_example(run: Callable[..., tuple[Any, ...]], tangents: Sequence[Any]) -> tuple[Any, ...]:
    """Run something on each example of batched tangents: a program relies on the layout of each value, which ops that
    are batched do not keep."""
    if not any(map(is_transformed, tangents)):
        return run(*tangents)
    batch = batch_of(tangents)
    if batch is None:
        raise BackwardError(
            "a backward of a compiled function is itself transformed, by torch.func.grad, jvp or the like inside the "
            "transform.\nTransform the function that foregrad compiles, or run this part without foregrad."
        )
    examples = [batch.example(i) for i in range(batch.size)] or [batch.empty_example()]
    return batch.together([each_example(run, example) for example in examples], batch.size)


def runner_for(run: Callable[..., Any], tangents: Sequence[Any]) -> Callable[..., Any]:
    """What to run on these tangents: tensors that wrap others carry out ops themselves, one by one."""
    return run.op_by_op if isinstance(run, Guarded) and any(map(is_wrapper, tangents)) else run


def plain(tangent: Any) -> Any:
    """The tangent of a plain result; one that wraps others, as the result of a collective does, may tell what it is."""
    return coerced(tangent, None, torch.Tensor) if is_wrapper(tangent) else tangent


class Unpacked:
    """The saved tensors of a context, each unpacked when it is asked for: one that is not needed may be stale."""

    def __init__(self, ctx: Any) -> None:
        self._ctx = ctx
        self._raw = packed_tensors(ctx)

    def __getitem__(self, place: int) -> Any:
        return self._raw[place].unpack()

    def outputs(self, first: int) -> Sequence[Any]:
        """The tensors from a place on, outputs of the node itself: the context unpacks these only with all others."""
        try:
            return self._ctx.saved_tensors[first:]
        except RuntimeError:
            stale = [hidden for raw in self._raw[:first] if (hidden := Stale.of(raw)) is not None]
            try:
                return self._ctx.saved_tensors[first:]
            finally:
                for hidden in stale:
                    hidden.is_quiet = False


class Stale:
    """A saved tensor that was written since: unpacking it raises, unless it is quiet."""

    def __init__(self, error: RuntimeError) -> None:
        self.error = error.with_traceback(None)
        self.is_quiet = True

    @staticmethod
    def of(raw: Any) -> Stale | None:
        """A saved tensor made quiet, if it is stale."""
        try:
            raw.unpack()
        except RuntimeError as error:
            stale = getattr(raw.unpack_hook, "__self__", None)
            if raw.unpack_hook is None:
                stale = Stale(error)
                raw.register_hooks(lambda tensor: tensor, stale.unpack)
            if not isinstance(stale, Stale):
                raise  # by a hook of the user's
            stale.is_quiet = True
            return stale
        return None

    def unpack(self, tensor: torch.Tensor) -> torch.Tensor:
        if not self.is_quiet:
            raise self.error
        return tensor
