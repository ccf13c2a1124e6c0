"""Questions: what Python asks of the data while a function is recorded, and the answers for which the rest holds.

    if mask.all():          all = aten.all(mask)
        y = x * 2           answer 0 = all: true        another program where the answer is another
    else:
        ...

The value that is asked for is that of an op, so that it is an output of the program. A `Solver` computes it from the
real arguments; where there is none, as for `fg.capture`, Python is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from foregrad.core.errors import CaptureError
from foregrad.record.constant_values import DECIDE_SHAPE
from foregrad.record.ghosts.op_results import NewTensor, Outcome, outcome_with
from foregrad.record.impure import is_random
from foregrad.record.ops import Alias
from foregrad.record.origins import where
from foregrad.torch_private.dispatch import no_dispatch_modes, no_function_modes
from foregrad.torch_private.ops import OpOverload, schema_of
from foregrad.torch_private.pytree import tree_leaves, tree_map_only

aten = torch.ops.aten

TRUTH, VALUES, SIZES = "truth", "values", "sizes"

#: So many bytes of one tensor may Python look at.
_MOST_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Question:
    """What Python asked of the results of an op, and what it was told."""

    op: int
    kind: str
    answer: Any  # a truth, the bytes of a tensor, or what each result looks like: size, strides, dtype
    text: str  # the answer, to be read
    line: str  # of the user's that asked

    @property
    def known(self) -> tuple[str, Any, str]:
        """What tells it from others that were asked at this point."""
        return self.kind, self.answer, self.line

    def __str__(self) -> str:
        return f"{self.text}  {self.line}"


class NotAtHand(Exception):
    """Nobody knows the value that Python asks for: it depends on a gradient that arrives from outside, or on an op with
    effects; or it is first asked for while backward runs."""


class Solver(Protocol):
    """Who knows the real arguments; raises `NotAtHand` where these do not decide a value."""

    def identify(self, aliases: Sequence[Alias]) -> list[Hashable]:
        """What tells the present value of each alias from others: how it is computed."""
        ...

    def solve(self, aliases: Sequence[Alias]) -> list[torch.Tensor]:
        """The present value of each alias."""
        ...


@dataclass(eq=False)
class Questions:
    """What was asked so far. Who asks again, as a checkpoint does in backward, is told the same."""

    recorder: Any
    solver: Solver | None = None
    given: Iterator[Question] | None = None  # with answers, in order, where the arguments have no data
    all: list[Question] = field(default_factory=list)
    _told: dict[Hashable, Any] = field(default_factory=dict)  # by what was asked
    _open: tuple[Hashable, Outcome] | None = None  # about the sizes of what the op that is being recorded returns

    def truth(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor with one element is true."""
        is_bool = tensor.dtype == torch.bool
        alias = self._asked_of(*((aten.clone.default, (tensor,)) if is_bool else (aten.ne.Scalar, (tensor, 0))))
        answer: bool = self._answer(alias, TRUTH, lambda: bool(self._solved(alias)))
        return answer

    def values(self, tensor: torch.Tensor) -> torch.Tensor:
        """What a tensor holds."""
        spec = self.recorder.alias(tensor).spec
        if spec.num_bytes > _MOST_BYTES:
            raise CaptureError(
                f"Python looks at all of a tensor {spec}, and what it finds decides how the function goes on.\n"
                f"{self._where()}\nLeave this part outside, or let Python look at a smaller result."
            )
        alias = self._asked_of(aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format})
        found: torch.Tensor = self._answer(alias, VALUES, lambda: _plain_copy(self._solved(alias)))
        with no_dispatch_modes(), no_function_modes():
            return found.clone()

    def outcome(self, func: OpOverload, args: Any, kwargs: Any) -> Outcome | None:
        """What an op returns whose sizes depend on the data; None if nobody can say."""
        if self.solver is None or is_random(func):
            return None
        try:
            return self._outcome(func, args, kwargs)
        except NotAtHand:
            return None

    def _outcome(self, func: OpOverload, args: Any, kwargs: Any) -> Outcome | None:
        assert self.solver is not None
        deciding = _deciding(func, args, kwargs)
        aliases = [self.recorder.alias(t) for t in deciding]
        with no_dispatch_modes(), no_function_modes(), torch.no_grad():
            ids = dict(zip(map(id, deciding), self.solver.identify(aliases), strict=True))

            def look(tensor: torch.Tensor) -> Any:
                return ids[id(tensor)] if id(tensor) in ids else str(self.recorder.alias(tensor).spec)

            asked = (SIZES, func, repr(tree_map_only(torch.Tensor, look, (args, kwargs))))
            outcome: Outcome | None = self._told.get(asked)
            if outcome is None and self.given is not None:
                outcome = _outcome_of(self._next(SIZES), func)
                self._open = (asked, outcome)
            if outcome is None and self.recorder.phase:
                raise NotAtHand
            if outcome is None:
                values = dict(zip(map(id, deciding), self.solver.solve(aliases), strict=True))
                swapped = tree_map_only(torch.Tensor, lambda t: values.get(id(t), t), (args, kwargs))
                outcome = outcome_with(func, swapped[0], swapped[1], set(map(id, values.values())))
                if not any(isinstance(one, NewTensor) for one in tree_leaves(outcome.result)):
                    return None
                self._open = (asked, outcome)
        return outcome

    def settle(self, index: int, outcome: Outcome, results: Sequence[Alias]) -> None:
        """An op was recorded; if its sizes depend on the data, they are a question."""
        opened, self._open = self._open, None
        if opened is None or opened[1] is not outcome:
            return
        looks = tuple((alias.size, alias.stride, alias.dtype) for alias in results)
        shown = ", ".join("x".join(map(str, alias.size)) or "a number" for alias in results)
        self._note(opened[0], outcome, Question(index, SIZES, looks, f"sizes {shown}", self._line()))

    def _asked_of(self, func: Any, args: Any, kwargs: Any = None) -> Alias:
        """What an op gives, which is recorded: the value that is asked for, as it is now."""
        with no_function_modes():
            found: Alias = self.recorder.alias(self.recorder.dispatch(func, args, kwargs or {}))
        return found

    def _solved(self, alias: Alias) -> torch.Tensor:
        assert self.solver is not None
        return self.solver.solve([alias])[0]

    def _next(self, kind: str) -> Question:
        """The question that is asked again."""
        found = next(self.given, None) if self.given is not None else None
        if found is None or found.kind != kind:
            raise NotAtHand
        return found

    def _answer(self, alias: Alias, kind: str, solve: Callable[[], Any]) -> Any:
        assert self.solver is not None
        assert alias.op is not None
        with no_dispatch_modes(), no_function_modes(), torch.no_grad():
            asked = (kind, self.solver.identify([alias])[0])
            if asked not in self._told:
                answer = solve() if self.given is None else _answer_of(self._next(kind), alias)
                kept = bytes_of(answer) if isinstance(answer, torch.Tensor) else answer
                self._note(asked, answer, Question(alias.op, kind, kept, _shown(answer), self._line()))
        return self._told[asked]

    def _note(self, asked: Hashable, answer: Any, question: Question) -> None:
        if self.recorder.phase:
            raise NotAtHand
        self._told[asked] = answer
        self.all.append(question)

    def _where(self) -> str:
        return where(self.recorder.module)

    def _line(self) -> str:
        return self._where().strip()


def _deciding(func: OpOverload, args: Any, kwargs: Any) -> list[torch.Tensor]:
    """The arguments of an op whose values decide the sizes of its results."""
    places = DECIDE_SHAPE.get(func, range(len(args)))
    rest = () if func in DECIDE_SHAPE else tuple(kwargs.values())
    return [t for t in tree_leaves([*(args[place] for place in places), *rest]) if isinstance(t, torch.Tensor)]


def _answer_of(question: Question, alias: Alias) -> Any:
    """What Python was told, from a question."""
    if question.kind == TRUTH:
        return question.answer
    row = torch.frombuffer(bytearray(question.answer), dtype=alias.dtype) if question.answer else torch.empty(0)
    return row.to(alias.dtype).view(alias.size)


def _outcome_of(question: Question, func: OpOverload) -> Outcome:
    """What an op has returned, from a question about its sizes."""
    made = tuple(NewTensor(size, stride, dtype, None) for size, stride, dtype in question.answer)
    return Outcome(made if len(schema_of(func).returns) > 1 else made[0], ())


def _plain_copy(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)


def bytes_of(tensor: torch.Tensor) -> bytes:
    """What a tensor holds, to the bit: `0.0` is not `-0.0`, and a NaN is itself."""
    row = tensor.detach().resolve_conj().resolve_neg().contiguous().view(-1)
    return bytes(row.view(torch.uint8).numpy()) if row.numel() else b""


def _shown(answer: Any) -> str:
    text = repr(answer.tolist()) if isinstance(answer, torch.Tensor) else repr(answer)
    return text if len(text) < 60 else f"{text[:57]}..."
