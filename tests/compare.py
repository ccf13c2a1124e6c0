"""Eager PyTorch is the reference: run a program with and without foregrad, and say everything that differs.

    assert_same(fn, lambda: (leaf(3),))     # one function, each call on fresh inputs

    @same_as_eager                          # a story, told with `wrap` as the identity and as `fg.compile`
    def test_two_calls_share_nothing(wrap):
        f = wrap(torch.sin)
        return f(torch.ones(2)), f(torch.ones(2))

Both compare bitwise (with another backend than `eager`: to the rounding that `_ROUNDING` states) and look at
what a user can see: structure, values, layout, flags, versions, which tensors are one object or share memory,
gradients (None or tensor), exceptions, written inputs, grad mode and generators.
"""

import contextlib
import copy
import dataclasses
import functools
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foregrad as fg

Facts = dict[str, object]

# Eager's gradients may be views and be written while they are summed; a leaf's .grad takes the leaf's own layout.
_PRIVATE_TO_THE_ENGINE = ("stride", "storage_offset", "_version")


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """A leaf that requires grad, with values that a wrong program is unlikely to hit."""
    return torch.randn(shape, dtype=dtype).requires_grad_()


def grads_of(*leaves: Tensor) -> "Gradients":
    return Gradients(t.grad for t in leaves)


class Gradients(tuple[Tensor | None, ...]):
    """Tensors of a story that are gradients: compared in all but what is private to the autograd engine."""


class HigherGradients(Gradients):
    """Gradients of gradients through a compiled call: their terms may be summed in another order, so values
    need to agree to float32 rounding only."""


#: The backend under test. One that fuses loops rounds otherwise than eager does.
BACKEND = os.environ["FOREGRAD_BACKEND"]
_ROUNDING = {torch.float16: 2e-3, torch.bfloat16: 2e-2, torch.float32: 2e-5, torch.float64: 1e-12}
_WITH_ROUNDING = (*_ROUNDING, torch.complex64, torch.complex128)


def only_with_eager(reason: str) -> Any:
    """Marks a test that holds for `backend="eager"` only."""
    return pytest.mark.skipif(BACKEND != "eager", reason=reason)


#: Marks a few tests of each kind: `make test-all` runs these with the backends that compile too.
also_compiled = pytest.mark.also_compiled


def some_compiled(names: Iterable[str], *chosen: str) -> list[Any]:
    """Names of cases, of which the chosen ones are marked so."""
    return [pytest.param(name, marks=also_compiled) if name in chosen else name for name in names]


#: Whether all sizes of arguments vary where a test does not say which.
DYNAMIC = {"dynamic": True} if os.environ.get("FOREGRAD_TEST_DYNAMIC") else {}


def compiled(target: Any, **options: Any) -> Any:
    return fg.compile(target, **{"backend": BACKEND, **DYNAMIC, **options})


def assert_same(
    fn: Callable[..., Any],
    make_inputs: Callable[[], tuple[Any, ...]] | Sequence[Callable[[], tuple[Any, ...]]],
    *,
    calls: int = 1,
    backward: bool = True,
    kwargs: Callable[[], dict[str, Any]] = dict,
    without: tuple[str, ...] = (),
) -> Any:
    """Call `fn` eagerly and compiled on fresh inputs and compare; return the compiled object.

    With several `make_inputs` the one compiled object is called with each in turn, all of it `calls` times.
    A module is copied for each side, and its parameters and buffers count as inputs. `without` names details of
    tensors, such as `_version`, that may differ; a test that needs it says why.
    """
    makers = [make_inputs] if callable(make_inputs) else list(make_inputs)
    reference, target = (copy.deepcopy(fn), copy.deepcopy(fn)) if isinstance(fn, nn.Module) else (fn, fn)
    subject = compiled(target)
    has_returned = False
    for number, make in enumerate(makers * calls, start=1):
        expected = _observe(reference, reference, make, kwargs, backward)
        found = _observe(subject, target, make, kwargs, backward)
        _check(_less(expected, without), _less(found, without), f"call {number} of {len(makers) * calls}")
        has_returned |= not isinstance(expected.get("call"), Raised)
    assert not has_returned or fg.explain(subject).captures, "the program ran, but it was never captured"
    return subject


def assert_refused(fn: Callable[..., Any], args: tuple[Any, ...], at: str) -> None:
    """Compiled, `fn` raises a CaptureError that names its line with the text `at`, and its inputs stay as they were."""
    inputs = {"args": args, "grads": [t.grad for _, t in _tensors({"args": args}) if t.is_leaf]}
    before = _facts(inputs) | _ambience()
    with refused(fn, at):
        compiled(fn)(*args)
    inputs["grads"] = [t.grad for _, t in _tensors({"args": args}) if t.is_leaf]
    _check(before, _facts(inputs) | _ambience(), "what a refused call leaves behind")


@contextlib.contextmanager
def refused(fn: Callable[..., Any], at: str) -> Iterator[None]:
    """The block raises a CaptureError that names the line of `fn` with the text `at`."""
    with pytest.raises(fg.CaptureError) as caught:
        yield
    assert re.search(location(fn, at), str(caught.value)), str(caught.value)


def location(fn: Callable[..., Any], text: str) -> str:
    """A pattern for `file:line` of the line of `fn` that holds `text`, in either of the usual spellings."""
    lines, start = inspect.getsourcelines(fn)
    (number,) = [start + offset for offset, line in enumerate(lines) if text in line]
    file = (inspect.getsourcefile(fn) or "").rsplit("/", 1)[-1]
    return rf"{re.escape(file)}(:|\"?, line ){number}\b"


def same_as_eager(story: Callable[..., Any]) -> Callable[..., None]:
    """A test that runs `story(wrap, ...)` eagerly and compiled, and compares what it returns or raises."""
    signature = inspect.signature(story)

    @functools.wraps(story)
    def test(**params: Any) -> None:
        expected = _tell(lambda: story(lambda target: target, **params))
        _check(expected, _tell(lambda: story(compiled, **params)), "the story")

    test.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])  # type: ignore[attr-defined]
    return test


@dataclasses.dataclass(frozen=True)
class Raised:
    """An exception as a value, equal in type and message; itself it is kept as the cause of a failure."""

    kind: type[BaseException]
    message: str
    error: BaseException = dataclasses.field(compare=False, repr=False)


@dataclasses.dataclass(frozen=True)
class _Gradient:
    tensor: Tensor
    is_higher: bool = False

    @staticmethod
    def of(t: Tensor | None, is_higher: bool = False) -> "_Gradient | None":
        return None if t is None else _Gradient(t, is_higher)


@dataclasses.dataclass(frozen=True, eq=False)
class Bits:
    """The elements of a tensor, equal when every bit is."""

    elements: Tensor

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Bits):
            return False
        if BACKEND != "eager" and self.elements.dtype == other.elements.dtype in _WITH_ROUNDING:
            return _close(self.elements, other.elements)
        return torch.equal(_bytes(self.elements), _bytes(other.elements))

    def __repr__(self) -> str:
        return repr(self.elements.tolist() if self.elements.numel() <= 64 else self.elements)


def _close(a: Tensor, b: Tensor) -> bool:
    """Equal but for rounding, relative to the largest element: sums may cancel."""
    if a.shape != b.shape:
        return False
    tolerance = _ROUNDING[torch.zeros((), dtype=a.dtype).abs().dtype]
    finite = b[b.isfinite()]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    return torch.allclose(a, b, tolerance, tolerance * max(scale, 1.0), equal_nan=True)


class Near(Bits):
    """Elements that are equal but for rounding."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and torch.allclose(self.elements, other.elements, 1e-4, 1e-6, equal_nan=True)


def _observe(
    call: Callable[..., Any],
    owner: object,
    make_inputs: Callable[[], tuple[Any, ...]],
    kwargs: Callable[[], dict[str, Any]],
    backward: bool,
) -> Facts:
    """Everything a user can see of one call on fresh inputs, and of the backward passes from it."""
    with _fresh_ambience():
        inputs: dict[str, Any] = {"args": make_inputs(), "kwargs": kwargs(), "module": _state(owner)}
        leaves, histories = _leaves_behind(inputs), {id(t): t.grad_fn for _, t in _tensors(inputs)}
        result = _attempt(lambda: call(*inputs["args"], **inputs["kwargs"]), "")
        seen = inputs | {"call": result, "module afterwards": _state(owner)}
        facts = _facts(seen) | _ambience()
        if backward:
            facts |= _gradients(_differentiable(seen, histories), leaves)
            facts |= {f"after backward, {name}": fact for name, fact in _facts(inputs | leaves).items()}
        return facts


def _tell(story: Callable[[], Any]) -> Facts:
    with _fresh_ambience():
        end = _attempt(story, "")
        if isinstance(end, Raised) and end.kind is AssertionError:
            raise end.error  # the story's own assertions hold on both sides
        return _facts({"story": end}) | _ambience()


def _differentiable(seen: dict[str, Any], histories: dict[int, Any]) -> dict[str, Tensor]:
    """Results with a history, and inputs whose history is not what it was."""
    candidates = {name: t for name, t in _tensors(seen) if _has_grad_fn(t) is True}
    return {name: t for name, t in candidates.items() if t.grad_fn is not histories.get(id(t))}


def _gradients(roots: dict[str, Tensor], leaves: dict[str, Tensor]) -> Facts:
    """Gradients from each root alone, then by `backward` from all of them."""
    grads: dict[str, Any] = {}
    if not leaves or not roots:
        return {}
    for name, root in roots.items():
        grads[f"gradients from {name}"] = _attempt(functools.partial(_gradient, root, leaves), ":")
    tangents = [_tangent(root) for root in roots.values()]
    grads["backward from all"] = _attempt(lambda: torch.autograd.backward(list(roots.values()), tangents), ":")
    grads |= {f"gradient of {name}": _Gradient.of(t.grad) for name, t in leaves.items()}
    return _facts(grads)


def _gradient(root: Tensor, leaves: dict[str, Tensor]) -> dict[str, "_Gradient | None"]:
    wanted = list(leaves.values())
    grads = torch.autograd.grad(root, wanted, _tangent(root), retain_graph=True, allow_unused=True)
    return dict(zip(leaves, map(_Gradient.of, grads), strict=True))


def _facts(named: dict[str, Any]) -> Facts:
    """What can be seen of a tree of values, one named fact each; a value's own name comes before its details."""
    facts: Facts = {}
    objects: dict[int, str] = {}
    storages: dict[int, str] = {}
    for name, value in _walk(named):
        if isinstance(value, Tensor):
            facts[name] = _kind(value)
            facts[f"{name} is"] = objects.setdefault(id(value), name)
            facts[f"{name}.storage"] = storages.setdefault(value.untyped_storage()._cdata, name)
        elif isinstance(value, _Gradient):
            facts[name] = _kind(value.tensor)
            facts |= {f"{name}.{field}": fact for field, fact in _details(value.tensor, _PRIVATE_TO_THE_ENGINE)}
            if value.is_higher:
                facts[f"{name}.values"] = Near(value.tensor.detach().clone())
        else:
            facts[name] = value
    for name, t in _tensors(named):
        facts[f"{name}._base"] = None if t._base is None else objects.get(id(t._base), "a tensor not shown")
        facts |= {f"{name}.{field}": fact for field, fact in _details(t)}
    return facts


def _kind(t: Tensor) -> tuple[object, ...]:
    return type(t), t.dtype, tuple(t.shape)


def _details(t: Tensor, without: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
    details = {
        "stride": t.stride(),
        "storage_offset": t.storage_offset(),
        "requires_grad": t.requires_grad,
        "is_leaf": _attempt(lambda: t.is_leaf, ":"),
        "has grad_fn": _has_grad_fn(t),
        "bits pending": (t.is_conj(), t.is_neg(), t.is_inference()),
        "_version": None if t.is_inference() else t._version,
        "values": Bits(t.detach().clone()) if _has_memory(t) else "freed",
    }
    return ((name, fact) for name, fact in details.items() if name not in without)


def _less(facts: Facts, without: tuple[str, ...]) -> Facts:
    return {name: fact for name, fact in facts.items() if not name.endswith(tuple(f".{field}" for field in without))}


def _walk(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of nested containers by name; a container too tells its type, and its length or keys."""
    if isinstance(value, Tensor | Raised | _Gradient):
        yield name, value
    elif isinstance(value, Mapping):
        if name:
            yield name, (type(value), list(value))
        for key, item in value.items():
            yield from _walk(item, f"{name}[{key!r}]" if name else key)
    elif isinstance(value, Gradients):
        for index, item in enumerate(value):
            yield f"{name}[{index}]", _Gradient.of(item, isinstance(value, HigherGradients))
    elif isinstance(value, list | tuple | set):
        yield name, (type(value), len(value))
        for index, item in enumerate(value):
            yield from _walk(item, f"{name}[{index}]")
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        yield from _walk(vars(value), name)
    else:
        yield name, (type(value), repr(value) if isinstance(value, float) else value)


def _tensors(named: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor once, under its first name."""
    met: set[int] = set()
    for name, value in _walk(named):
        if isinstance(value, Tensor) and id(value) not in met:
            met.add(id(value))
            yield name, value


def _leaves_behind(inputs: dict[str, Any]) -> dict[str, Tensor]:
    """The leaves that gradients reach through the inputs: an input itself, or what it was computed from."""
    leaves: dict[int, tuple[str, Tensor]] = {}
    for name, t in _tensors(inputs):
        if t.requires_grad and t.grad_fn is None:
            leaves.setdefault(id(t), (name, t))
        queue, met = [t.grad_fn], set()
        while queue:
            node = queue.pop()
            if node is None or node in met:
                continue
            met.add(node)
            if hasattr(node, "variable"):
                leaves.setdefault(id(node.variable), (f"leaf behind {name}", node.variable))
            queue += [edge for edge, _ in node.next_functions]
    return dict(leaves.values())


def _state(owner: object) -> dict[str, Tensor]:
    if not isinstance(owner, nn.Module):
        return {}
    return dict(owner.named_parameters(remove_duplicate=False)) | dict(owner.named_buffers(remove_duplicate=False))


def _attempt(call: Callable[[], Any], until: str) -> Any:
    """The result, or the exception with its message cut at `until` (what follows names autograd's nodes)."""
    try:
        return call()
    except Exception as error:
        message = str(error)
        return Raised(type(error), message.split(until)[0] if until else message, error)


def _has_grad_fn(t: Tensor) -> bool | Raised:
    """Asking a stale view for its history raises, in eager too."""
    has_grad_fn: bool | Raised = _attempt(lambda: t.grad_fn is not None, ":")
    return has_grad_fn


def _tangent(t: Tensor) -> Tensor:
    """A cotangent with the layout of its output; its few bits make rounding rarer where gradients are summed."""
    values = ((torch.arange(t.numel()) % 16 + 4) / 8).reshape(t.shape).to(t.dtype)
    return torch.empty_like(t, requires_grad=False).copy_(values)


def _bytes(t: Tensor) -> Tensor:
    return t.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format).flatten().view(torch.uint8)


def _has_memory(t: Tensor) -> bool:
    last = sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True)) + t.storage_offset()
    return t.numel() == 0 or (last + 1) * t.element_size() <= t.untyped_storage().nbytes()


@contextlib.contextmanager
def _fresh_ambience() -> Iterator[None]:
    """A seeded generator, and the caller's generator, grad mode and autocast again at the end."""
    autocast = torch.is_autocast_enabled("cpu")
    with torch.random.fork_rng(devices=[]), torch.set_grad_enabled(torch.is_grad_enabled()):
        torch.manual_seed(0)
        try:
            yield
        finally:
            torch.set_autocast_enabled("cpu", autocast)


def _ambience() -> Facts:
    return {
        "grad mode afterwards": torch.is_grad_enabled(),
        "autocast afterwards": torch.is_autocast_enabled("cpu"),
        "generator afterwards": Bits(torch.get_rng_state()),
    }


def _check(expected: Facts, found: Facts, where: str) -> None:
    """Fail with every fact that differs; the details of a value that one side does not have are left out."""
    absent = "nothing"
    lines: dict[str, str] = {}
    cause = None
    for name in expected | found:
        ours, theirs = found.get(name, absent), expected.get(name, absent)
        if ours == theirs or (absent in (ours, theirs) and any(name.startswith(shown) for shown in lines)):
            continue
        lines[name] = f"  {name}\n    eager     {theirs!r}\n    foregrad  {ours!r}"
        cause = cause or (ours.error if isinstance(ours, Raised) else None)
    if lines:
        raise AssertionError(f"{where} differs from eager:\n" + "\n".join(lines.values())) from cause
