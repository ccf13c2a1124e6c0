"""`check(program, compile_fn)`: run a program twice, as it is and compiled, and say the first difference.

Each run writes a transcript. After the call, and again after a write by the caller, every visible tensor is
recorded: value, layout, version, flags, and which others it is or shares memory with; then the gradients. The
two transcripts must be equal.

Values compare bitwise (any NaN equals any NaN), and so do gradients, but for three cases, where a tight tolerance
holds, of the largest element and by the narrowest type in the program:
- Terms of one gradient meet outside the captured function: a place in the autograd graph around it is reached twice,
  as when arguments are views of one base, or an argument is returned. A captured function adds its own terms first,
  so three or more terms are added in another order.
- Backward comes from several results of which one is a view: it is re-made outside, so its term comes before those of
  other results, where in eager it has its turn among them.
- Second derivatives, for the same reason.

What differs as `docs/differences.md` says (`known.py`) ends a comparison with the verdict `documented: `.

After a call or a backward that raises, only the type of the exception is compared, not what it wrote before.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from tests.fuzz.entry import Entry
from tests.fuzz.known import EMPTY, PARTIAL, differs_in_zeros, is_known
from tests.fuzz.program import FuzzProgram, Scenario

REFUSED = "refused: "
DOCUMENTED = "documented: "
FINE = (REFUSED, DOCUMENTED)
SEEDS = (101, 202, 303)
#: Calls that are each finished before the next, by their data.
NUMBERS = {"once": (1,), "twice": (1, 2), "many": (1, 2, 1, 3, 2, 3, 1)}


def check(
    program: FuzzProgram, compile_fn: Callable, refusals: tuple[type[Exception], ...] = (), *, is_bitwise: bool = True
) -> str | None:
    """None if compiled and eager agree, else the first difference, or `refused: ` and the reason."""
    scope = program.load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = transcript(program, scope, scope["fn"])
        try:
            actual = transcript(program, scope, compile_fn(scope["fn"]), refusals)
        except refusals as error:
            return f"{REFUSED}{error}"
    seen = actual if is_bitwise else [replace(entry, exact=False) for entry in actual]
    return difference(expected, seen, program)


def difference(expected: list[Entry], actual: list[Entry], program: FuzzProgram) -> str | None:
    for one, other in zip(expected, actual, strict=False):
        if one.what != other.what or one.fact != other.fact:
            elsewhere = f"{other.what}: " if one.what != other.what else ""
            where = f"{DOCUMENTED}{one.what}" if is_known(one, other, program) else one.what
            return f"{where}: eager {one.fact}{one.detail}, compiled {elsewhere}{other.fact}{other.detail}"
        if one.value is not None and not same(one.value, other.value, other.exact, program.is_wide):
            where = f"{DOCUMENTED}{one.what}" if differs_in_zeros(one.value, other.value, program) else one.what
            return f"{where}: eager {one.value.tolist()}, compiled {other.value.tolist()}"
    if len(expected) != len(actual):
        return f"eager recorded {len(expected)} facts, compiled {len(actual)}"
    return None


def same(one: torch.Tensor, other: torch.Tensor, exact: bool, is_wide: bool) -> bool:
    if not exact:
        return torch.equal(one, other) or close(one, other, is_wide)
    if one.is_complex():
        one, other = torch.view_as_real(one), torch.view_as_real(other)
    return same_bits(one, other) or (
        torch.equal(one.isnan(), other.isnan())
        and same_bits(one.masked_fill(one.isnan(), 0), other.masked_fill(other.isnan(), 0))
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) and torch.equal(one.signbit(), other.signbit())


def close(one: torch.Tensor, other: torch.Tensor, is_wide: bool) -> bool:
    finite = one[one.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    relative, least = (1e-11, 1e-16) if is_wide else (1e-5, 1e-7)  # the least of terms around 1, which may cancel out
    return torch.allclose(one, other, rtol=0, atol=scale * relative + least, equal_nan=True)


# --- one run ------------------------------------------------------------------------------------------------


@dataclass
class Call:
    """One call of the function: what went in, what came out, what the caller still sees."""

    number: int
    arguments: tuple[Any, ...]
    watched: dict[str, torch.Tensor]
    before: dict[str, tuple[int, Any]] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)

    def tensors(self) -> dict[str, torch.Tensor]:
        return {**{k: v for k, v in self.outputs.items() if isinstance(v, torch.Tensor)}, **self.watched}


def transcript(program: FuzzProgram, scope: dict[str, Any], fn: Callable, refusals: tuple = ()) -> list[Entry]:
    run = Run(program, scope, fn, refusals)
    run.seed()
    if program.scenario.calls == "interleaved":
        calls = [run.call(number) for number in (1, 2)]
        for call in calls:
            run.finish(call)
    else:
        for number in NUMBERS[program.scenario.calls]:
            run.finish(run.call(number))
    if not run.has_raised:
        run.entries.append(Entry("next random number", torch.rand(()).item()))
    return run.entries


class Run:
    """Calls the function as the scenario says and keeps the transcript."""

    def __init__(self, program: FuzzProgram, scope: dict[str, Any], fn: Callable, refusals: tuple):
        self.program, self.scope, self.fn, self.refusals = program, scope, fn, refusals
        self.scenario: Scenario = program.scenario
        self.entries: list[Entry] = []

    def attempt(self, what: str, action: Callable[[], Any]) -> bool:
        """Whether the action went through; its exception is part of the transcript."""
        try:
            action()
        except self.refusals:
            raise
        except Exception as error:
            self.entries.append(Entry(what, type(error).__name__, detail=f" ({error})"))
            return False
        self.entries.append(Entry(what, "went through"))
        return True

    def seed(self) -> None:
        torch.manual_seed(self.program.seed)
        if "own" in self.scope:
            self.scope["own"].manual_seed(self.program.seed + 1)

    @property
    def has_raised(self) -> bool:
        """Whether something stopped half way, with generators wherever they were."""
        return any(entry.detail for entry in self.entries)

    def call(self, number: int) -> Call | None:
        if self.has_raised:
            self.seed()
        self.scope["generator"].manual_seed(SEEDS[number - 1])
        call = Call(number, *self.scope["make_inputs"]())
        call.before = {name: (t._version, t.grad_fn) for name, t in call.watched.items()}

        def act() -> None:
            flatten(self.fn(*call.arguments), "output", call.outputs)

        went = self.attempt(f"call {number}", act)
        self.entries.append(Entry("grad mode", torch.is_grad_enabled()))
        torch.set_grad_enabled(True)
        if not went:
            return None
        self.observe(call, "after call")
        self.generators("after call")
        return call

    def finish(self, call: Call | None) -> None:
        if call is None:
            return
        if self.has_raised:
            self.seed()
        choose = random.Random(self.program.seed)
        if self.scenario.write and self.write(call, choose):
            self.observe(call, "after write")
        self.backward(call, choose)

    def write(self, call: Call, choose: random.Random) -> bool:
        """The caller writes in place to one result, which its aliases must see as in eager."""
        if self.program.has_data_alias:
            return False  # whether eager's backward uses the new value depends on which of the two it has saved
        pool = call.outputs.values() if self.scenario.write == "output" else call.arguments
        targets = [t for t in pool if isinstance(t, torch.Tensor) and t.is_floating_point()]
        if not targets:
            return False
        target = choose.choice(targets)
        action = choose.choice((lambda: target.mul_(2.0), lambda: target.sin_(), lambda: target.detach().add_(1.0)))
        return self.attempt(f"write to {self.scenario.write}", action)

    def observe(self, call: Call, when: str) -> None:
        tensors = call.tensors()
        plain = {name: repr(value) for name, value in call.outputs.items() if not isinstance(value, torch.Tensor)}
        self.entries.append(Entry(f"{when}: outputs", [*call.outputs, plain]))
        self.entries.append(Entry(f"{when}: identity", groups(tensors, id)))
        self.entries.append(Entry(f"{when}: sharing", groups(tensors, lambda t: t.untyped_storage()._cdata)))
        for name, tensor in tensors.items():
            self.entries += describe(f"{when}: {name}", tensor)

    # --- backward

    def backward(self, call: Call, choose: random.Random) -> None:
        roots = differentiable_roots(call)
        self.num_roots = len(roots)
        if self.scenario.backward == "some" and len(roots) > 1:
            roots = dict(sorted(choose.sample(sorted(roots.items()), choose.randint(1, len(roots) - 1))))
        if not roots:
            return
        generator = torch.Generator().manual_seed(call.number)
        tangents = {name: tangent(root, generator, call.number) for name, root in roots.items()}
        if self.scenario.backward == "create_graph":
            self.attempt("second derivative", lambda: self.second_derivative(call, roots, tangents))
        elif self.scenario.backward == "arguments":
            self.attempt("gradients of arguments", lambda: self.argument_gradients(call, roots, tangents))
        elif not self.engine_backward(call, roots, tangents):
            for name in () if self.program.goes_back_once else roots:
                self.engine_backward(call, {name: roots[name]}, tangents)
        else:
            for _ in range(1, self.scenario.repeats):
                torch.rand(3)
                self.engine_backward(call, roots, tangents)

    def engine_backward(self, call: Call, roots: dict, tangents: dict) -> bool:
        """`backward()` into the leaves; says whether it went through, for roots may fail one by one."""
        if self.has_raised:
            self.seed()
        inputs = [tangents[name] for name in roots]
        label = f"backward of {', '.join(roots)}{'' if len(roots) == self.num_roots else PARTIAL}"
        exact = not adds_in_another_order(roots.values())
        went = self.attempt(label, lambda: torch.autograd.backward(list(roots.values()), inputs, retain_graph=True))
        for name, tensor in call.tensors().items():
            if is_leaf(tensor):
                if went:
                    self.gradient(f"{label}: gradient of {name}", tensor.grad, exact)
                tensor.grad = None
        if went:
            self.generators(label)
        return went

    def second_derivative(self, call: Call, roots: dict, tangents: dict) -> None:
        leaves = {n: t for n, t in call.watched.items() if is_leaf(t)}
        if not leaves:
            return
        first = torch.autograd.grad(
            list(roots.values()),
            list(leaves.values()),
            list(tangents.values()),
            allow_unused=True,
            create_graph=True,
        )
        exact = not adds_in_another_order(roots.values())
        for name, gradient in zip(leaves, first, strict=True):
            self.gradient(f"gradient of {name} with create_graph", gradient, exact)
            needs = gradient is not None and gradient.requires_grad
            detail = EMPTY if not all(tensor.numel() for tensor in call.watched.values()) else ""
            self.entries.append(Entry(f"gradient of {name} requires grad", needs, detail=detail))
        total = sum((g * g.detach().cos()).sum() for g in first if g is not None and g.requires_grad)
        if isinstance(total, torch.Tensor):
            second = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
            for name, gradient in zip(leaves, second, strict=True):
                self.gradient(f"second derivative of {name}", gradient, exact=False)

    def argument_gradients(self, call: Call, roots: dict, tangents: dict) -> None:
        """Gradients of every tensor of the caller whose memory the function left alone."""
        written = {t.untyped_storage()._cdata for n, t in call.watched.items() if is_written(call, n)}
        sources = {
            n: t for n, t in call.watched.items() if t.requires_grad and t.untyped_storage()._cdata not in written
        }
        if not sources:
            return
        gradients = torch.autograd.grad(
            list(roots.values()), list(sources.values()), list(tangents.values()), allow_unused=True
        )
        exact = not adds_in_another_order(roots.values())
        for name, gradient in zip(sources, gradients, strict=True):
            self.gradient(f"gradient of {name}", gradient, exact)

    def generators(self, when: str) -> None:
        """Where the random number generators stand."""
        if self.has_raised:
            return
        for name, generator in (("default", torch.default_generator), ("own", self.scope.get("own"))):
            if generator is not None:
                self.entries.append(Entry(f"{when}: {name} generator", hash(generator.get_state().numpy().tobytes())))

    def gradient(self, what: str, gradient: torch.Tensor | None, exact: bool) -> None:
        if gradient is None:
            self.entries.append(Entry(what, None))
        else:
            value = gradient.detach().resolve_conj().clone()
            self.entries.append(Entry(what, (value.dtype, tuple(value.shape)), value, exact))


# --- what is observed ---------------------------------------------------------------------------------------


def flatten(value: Any, name: str, into: dict[str, Any]) -> None:
    """Leaves of nested tuples, lists and dicts by path; the container type is a leaf of its own."""
    if isinstance(value, (tuple, list, dict)):
        into[f"{name} type"] = type(value).__name__
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            flatten(item, f"{name}[{key!r}]", into)
    else:
        into[name] = value


def groups(tensors: dict[str, torch.Tensor], key: Callable[[torch.Tensor], int]) -> list[str]:
    """For each tensor the first one with the same key."""
    first: dict[int, str] = {}
    return [first.setdefault(key(tensor), name) for name, tensor in tensors.items()]


def describe(what: str, tensor: torch.Tensor) -> list[Entry]:
    layout = (tensor.dtype, tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return [
        Entry(f"{what} layout", layout),
        Entry(f"{what} version", tensor._version),
        Entry(f"{what} requires_grad", tensor.requires_grad),
        Entry(f"{what} has grad_fn, is leaf", history(tensor)),
        Entry(f"{what} value", None, tensor.detach().resolve_conj().clone()),
    ]


def history(tensor: torch.Tensor) -> tuple[bool, bool] | str:
    """Reading grad_fn re-makes it for a view whose base was written, which autograd may refuse."""
    try:
        return tensor.grad_fn is not None, tensor.is_leaf
    except RuntimeError:
        return "refused by autograd"


def is_leaf(tensor: torch.Tensor) -> bool:
    return tensor.requires_grad and history(tensor) == (False, True)


def differentiable_roots(call: Call) -> dict[str, torch.Tensor]:
    """Outputs with a history, each once, and inputs whose value was replaced under autograd."""
    found: dict[int, tuple[str, torch.Tensor]] = {}
    for name, tensor in call.tensors().items():
        if history(tensor) == (True, False) and (name in call.outputs or is_written(call, name)):
            found.setdefault(id(tensor), (name, tensor))
    return dict(found.values())


def is_written(call: Call, name: str) -> bool:
    tensor = call.watched[name]
    return history(tensor) == "refused by autograd" or (tensor._version, tensor.grad_fn) != call.before[name]


def tangent(root: torch.Tensor, generator: torch.Generator, number: int) -> torch.Tensor:
    """Random, in the layout of the root for the first call, contiguous for the second."""
    dtype = root.dtype.to_real() if root.is_complex() else root.dtype
    values = torch.rand(root.shape, generator=generator, dtype=dtype) - 0.3
    return torch.empty_like(root).copy_(values) if number == 1 else values.to(root.dtype)


def adds_in_another_order(roots: Collection[torch.Tensor]) -> bool:
    """Whether a backward of a captured function may add terms of a gradient in an order of its own."""
    return meets_terms(roots) or (len(roots) > 1 and any(root._is_view() for root in roots))


def meets_terms(roots: Iterable[torch.Tensor]) -> bool:
    """Whether some place in the autograd graph is reached twice."""
    stack = [(root.grad_fn, root.output_nr) for root in roots]
    reached: set[tuple[Any, int]] = set()
    entered: set[Any] = set()
    while stack:
        place = stack.pop()
        if place[0] is None:
            continue
        if place in reached:
            return True
        reached.add(place)
        if place[0] not in entered:
            entered.add(place[0])
            stack += place[0].next_functions
    return False
