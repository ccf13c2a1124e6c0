"""Data reads: what Python is told when it asks for the data of a ghost, which has none.

A tensor that depends on no input has a value that can be computed; one that depends on small tensors of declared state
alone has one that is a number, read at each call. Any other is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.constant_values import known_value
from foregrad.record.origins import where
from foregrad.record.questions import NotAtHand, Questions
from foregrad.record.symbols.data_values import item_of
from foregrad.record.symbols.numbers import Expression, Float, Int, expression_of
from foregrad.record.symbols.scalar_state import Mirror
from foregrad.record.symbols.sizes import formula_of
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.ops import OpOverload, schema_of

aten = torch.ops.aten

_COMPARES = {aten.equal.default, aten.allclose.default}

#: Ops, beside pointwise ones, that take an integer of Python's as a value and not as a size.
_TAKES_VALUES = {
    aten.fill_.Scalar,
    aten.scalar_tensor.default,
    aten.full.default,
    aten.full_like.default,
    aten.new_full.default,
}


def gives_shape(func: OpOverload) -> bool:
    """Whether the shape of a result may depend on numbers that are no integers."""
    space, _, name = schema_of(func).name.partition("::")
    return space != "aten" or name in ("arange", "range") or name.startswith(("upsample_", "_upsample_"))


class Values:
    """The values of the tensors of a recorder, as far as there are any."""

    def __init__(self, recorder: Any) -> None:
        self._recorder = recorder
        self.mirror: Mirror | None = None
        self.questions = Questions(recorder)
        self.assumed: dict[OpOverload, bool] = {}  # what checks of torch's own are taken to find
        self.items: list[Any] = []  # the numbers that depend on data
        self.gives_floats = False  # and none of these: `.item()` asks for the value
        self.numbers_used = False  # by the op that is being recorded

    @contextmanager
    def mirrored(self, mirror: Mirror | None) -> Iterator[None]:
        """Read small tensors of declared state as numbers, for a while."""
        self.mirror = mirror
        try:
            yield
        finally:
            self.mirror = None

    # -- numbers --------------------------------------------------------------------------------------

    def use(self, expression: Expression, func: OpOverload) -> Any:
        """A number as an argument of an op: itself, or its value where it is a size or part of a backward."""
        self.numbers_used = True
        is_value = type(expression.value) is float or func in _TAKES_VALUES or torch.Tag.pointwise in func.tags
        if expression.is_given and (gives_shape(func) or self._recorder.phase):
            is_carried = is_value and not gives_shape(func) and expression in expression.numbers.carried
            return expression if is_carried else expression.known()
        if self._recorder.phase or not (is_value or "_foreach_" in schema_of(func).name):
            return expression.known()
        if expression.is_given:
            expression.numbers.used[expression] = None
        return expression

    def without_numbers(self, value: Any) -> Any:
        """Arguments with the value of each number in its place: what they look like depends on its type alone."""
        self.numbers_used = False
        return _without_numbers(value)

    def number(self, tensor: torch.Tensor) -> Any:
        """The value of a small tensor of declared state as a number; None if it has none."""
        if self.mirror is None:
            return None
        with no_dispatch_modes(), no_function_modes():
            return self.mirror.value(self._recorder.alias(tensor))

    # -- tensors --------------------------------------------------------------------------------------

    @property
    def may_ask(self) -> bool:
        """Whether there is somebody who knows the data."""
        return self.questions.solver is not None

    def read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """An op that reads data."""
        recorder = self._recorder
        made_by = recorder.alias(args[0]).op if self.assumed else None
        answer = self.assumed.get(recorder.ops[made_by].func) if made_by is not None else None
        if answer is not None and self.known(args[0]) is None:
            return self._assume(args[0], answer)
        if func in _COMPARES and self.may_ask and any(self.known(tensor) is None for tensor in args[:2]):
            return self._alike(func, args, kwargs)
        values = [self.of(a) if isinstance(a, torch.Tensor) else a for a in args]
        with no_dispatch_modes():
            return func(*values, **kwargs)

    def _alike(self, func: Any, args: Any, kwargs: Any) -> bool:
        """Whether two tensors hold the same, or nearly: asked as a truth, since they may be large."""
        one, other = args[:2]
        if func is aten.equal.default and one.size() != other.size():
            return False
        with no_function_modes(), self._recorder, torch.no_grad():
            alike = (torch.eq(one, other) if func is aten.equal.default else torch.isclose(*args, **kwargs)).all()
        found = self.truth(alike)
        return bool(self.of(alike)) if found is None else found

    def truth(self, tensor: torch.Tensor) -> bool | None:
        """Whether a tensor is true, asked as a truth; None if it is no tensor of data."""
        if not self.may_ask or self.number(tensor) is not None or self.known(tensor) is not None:
            return None
        try:
            return self.questions.truth(tensor)
        except NotAtHand:  # whoever asks for the value is refused in words
            return None

    def _assume(self, condition: torch.Tensor, answer: bool) -> bool:
        """Answer a check on data as it should turn out, and let the program make the check at each call."""
        if not answer:
            condition = self._recorder.dispatch(aten.logical_not.default, (condition,), {})
        message = f"a check of the captured function fails{self._where()}"
        self._recorder.dispatch(aten._assert_async.msg, (condition, message), {})
        return answer

    def of(self, tensor: torch.Tensor, asked_by: str | None = None) -> torch.Tensor:
        """The value of a tensor that Python asks for, by a method if it has a name; refused if an input decides it."""
        value = self.known(tensor)
        if value is not None:
            return value
        number = self.number(tensor)
        if number is not None:
            plain = number.node.known() if isinstance(number, (Float, Int)) else number
            with no_dispatch_modes(), no_function_modes():
                return torch.tensor(plain, dtype=tensor.dtype)
        if self.may_ask:
            with suppress(NotAtHand):
                return self.questions.values(tensor)
        spec, why = self._recorder.alias(tensor).spec, "capture has no data"
        if self.may_ask:
            why = "it is first asked for in a backward, or depends on what arrives there or on an op with effects"
        if asked_by is not None:
            raise CaptureError(
                f"`{asked_by}` of a tensor {spec} is needed in Python, but {why}.\n{self._where()}\n"
                "Do the same with tensors, or return the tensor and call it outside the captured function."
            )
        raise CaptureError(
            f"the value of a tensor {spec} is needed in Python, but {why}.\n{self._where()}\n"
            "Keep the computation in tensors (torch.where for a branch), compute the number outside and pass it as an "
            "argument, or leave this part outside the captured function."
        )

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of a tensor that depends on no input; None if it does, or is random, or was written."""
        recorder = self._recorder
        with no_dispatch_modes(), no_function_modes(), torch.no_grad():
            return known_value(recorder.ops, recorder.memory, recorder.constants, recorder.alias(tensor))

    def _where(self) -> str:
        return where(self._recorder.module)


def _without_numbers(value: Any) -> Any:
    found = expression_of(value)
    if found is not None:
        return found.value
    if item_of(value) is not None or formula_of(value) is not None:
        return 1.0
    if isinstance(value, dict):
        return {k: _without_numbers(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_without_numbers(v) for v in value)
    return value
