"""What one call leaves behind, and the first difference between two such observations."""

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

Seen = dict[str, Any]


@dataclass(frozen=True)
class Snapshot:
    """A tensor's value and everything about it that a caller can notice."""

    facts: Mapping[str, Any]
    parts: tuple[torch.Tensor, ...]


def snapshot(tensor: torch.Tensor) -> Snapshot:
    facts = {"dtype": tensor.dtype, "shape": tuple(tensor.shape), "layout": tensor.layout}
    facts["type"] = type(tensor)
    facts["requires_grad"] = tensor.requires_grad
    value = tensor.detach()
    if value.layout is not torch.strided:
        facts["coalesced"] = value.layout is torch.sparse_coo and value.is_coalesced()
        return Snapshot(facts, tuple(part.clone() for part in _sparse_parts(value)))
    facts["stride"] = value.stride()
    facts["conj"], facts["neg"] = value.is_conj(), value.is_neg()
    plain = value.resolve_conj().resolve_neg()
    return Snapshot(facts, (plain.clone(memory_format=torch.contiguous_format),))


def labelled(prefix: str, tree: Any) -> dict[str, Any]:
    """The leaves of a tree by their path, `output[0]['loss']`."""
    leaves, _ = pytree.tree_flatten_with_path(tree)
    return {prefix + pytree.keystr(path): leaf for path, leaf in leaves}


def tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def fresh(tree: Any) -> Any:
    """A copy with the same values, strides and sharing of storage, its tensors leaves for autograd."""
    memo: dict[int, Any] = {}

    def leaf(value: Any) -> Any:
        if isinstance(value, torch.nn.Module):
            return value
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value, memo)
        plain = value.detach()
        # torch 2.13 cannot deepcopy sparse CSR tensors.
        copied = copy.deepcopy(plain, memo) if plain.layout is torch.strided else plain.clone()
        return copied.requires_grad_(value.requires_grad)

    return pytree.tree_map(leaf, tree)


def see(prefix: str, tree: Any) -> Seen:
    return {
        label: snapshot(leaf) if isinstance(leaf, torch.Tensor) else leaf
        for label, leaf in labelled(prefix, tree).items()
    }


def see_sharing(outputs: Any, inputs: Any) -> Seen:
    """For each output: the input that it is, the first tensor before it with its storage, its offset."""
    seen: Seen = {}
    earlier = {k: v for k, v in labelled("input", inputs).items() if _has_storage(v)}
    for label, leaf in labelled("output", outputs).items():
        if not _has_storage(leaf):
            continue
        for other, tensor in earlier.items():
            if leaf is tensor:
                seen[f"identity of {label}"] = other
            if _storage(leaf) == _storage(tensor):
                seen[f"storage of {label}"] = f"{other} at {leaf.storage_offset()}"
                break
        earlier[label] = leaf
    return seen


def tangents_for(outputs: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Random tangents with the outputs' strides and layouts. The global generator does not move."""
    generator = torch.Generator().manual_seed(1)
    return [_random_like(out.detach(), generator) for out in outputs]


def see_call(call: Callable[..., Any], args: Any, kwargs: Any, *, seed: int) -> tuple[Any, Seen]:
    """Call under a seed: the output, and what is seen of the output, the inputs and the generator."""
    torch.manual_seed(seed)
    output = call(*args, **kwargs)
    seen = see("output", output)
    seen["structure of the output"] = str(pytree.tree_structure(output))
    seen |= see_sharing(output, (args, kwargs))
    seen |= see("input after the call", (args, kwargs))
    seen["versions of the inputs"] = [t._version for t in tensors((args, kwargs))]
    seen["generator after the call"] = snapshot(torch.get_rng_state())
    return output, seen


ROUNDED = ("output", "gradient", "state", "buffer", "after training")


def difference(expected: Seen, actual: Seen, *, is_close_enough: bool = False, is_rounded: bool = False) -> str | None:
    """The first difference in words, or None. What may be close enough is equal to rounding, in any layout."""
    rounded = ROUNDED if is_rounded else ("gradient",) if is_close_enough else ()
    for label in expected.keys() | actual.keys():
        if label not in actual or label not in expected:
            return f"{label}: expected {expected.get(label, 'none')}, got {actual.get(label, 'none')}"
    for label, left in expected.items():
        if label.startswith(rounded) and _is_close(left, actual[label]):
            continue
        if found := _value_difference(left, actual[label]):
            return f"{label}: {found}"
    return None


def _is_close(left: Any, right: Any) -> bool:
    if not (isinstance(left, Snapshot) and isinstance(right, Snapshot)):
        return False
    return all(a.shape == b.shape and _is_rounded(a, b) for a, b in zip(left.parts, right.parts, strict=True))


def _is_rounded(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors are equal to rounding; terms as large as the largest element may have cancelled in others."""
    finite = one[one.isfinite()].abs()
    scale = max(1.0, float(finite.max()) if finite.numel() else 0.0)
    return torch.allclose(one, other, rtol=1e-5, atol=1e-6 * scale, equal_nan=True)


def _value_difference(left: Any, right: Any) -> str | None:
    if not (isinstance(left, Snapshot) and isinstance(right, Snapshot)):
        has_no_equality = type(left).__eq__ is object.__eq__
        if type(left) is type(right) and (has_no_equality or left == right or left != left):
            return None
        return f"expected {left}, got {right}"
    for fact, value in left.facts.items():
        if right.facts.get(fact) != value:
            return f"{fact}: expected {value}, got {right.facts.get(fact)}"
    for a, b in zip(left.parts, right.parts, strict=True):
        if a.shape != b.shape or not torch.equal(_bits(a), _bits(b)):
            return f"values differ: {_how_far(a, b)}"
    return None


def _how_far(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.shape != b.shape:
        return f"{tuple(a.shape)} and {tuple(b.shape)} values"
    different = (_bits(a) != _bits(b)).any(-1)
    error = (a.to(torch.complex128) - b.to(torch.complex128)).abs().max().item()
    return f"{int(different.sum())} of {a.numel()}, by at most {error:.3g}"


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.unsqueeze(-1).contiguous().view(torch.uint8)


def _random_like(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if value.layout is torch.sparse_csr:
        parts = value.crow_indices(), value.col_indices(), _random_like(value.values(), generator)
        return torch.sparse_csr_tensor(*parts, value.shape)
    random = torch.randn(value.shape, dtype=value.dtype, generator=generator)
    return torch.empty_like(value).copy_(random)


def _sparse_parts(tensor: torch.Tensor) -> tuple[torch.Tensor, ...]:
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return tensor.crow_indices(), tensor.col_indices(), tensor.values()
    return tensor.ccol_indices(), tensor.row_indices(), tensor.values()


def _has_storage(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.layout is torch.strided and value.numel() > 0


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata
