"""The result of a call: an expression of the values that the call has at hand."""

from __future__ import annotations

from foregrad.core.source import Source
from foregrad.program.program import Calling
from foregrad.runtime.declared_state import literal
from foregrad.torch_private.pytree import TreeSpec, tree_unflatten


def result_text(source: Source, calling: Calling) -> str:
    """What the call returns."""
    leaves = [literal(source, result) for result in calling.results]
    text, used = _literal(calling.structure, leaves)
    if text is not None and used == len(leaves):
        return text
    unflatten = source.name("tree_unflatten", tree_unflatten)
    return f"{unflatten}([{', '.join(leaves)}], {source.name('structure', calling.structure)})"


def _literal(structure: TreeSpec, leaves: list[str], used: int = 0) -> tuple[str | None, int]:
    """A result built of tuples, lists and dicts as an expression; None for other containers."""
    if structure.type is None:
        return (leaves[used], used + 1)
    parts: list[str] = []
    for child in structure.children():
        text, used = _literal(child, leaves, used)
        if text is None:
            return None, used
        parts.append(text)
    if structure.type is tuple:
        return f"({''.join(p + ', ' for p in parts)})", used
    if structure.type is list:
        return f"[{', '.join(parts)}]", used
    if structure.type is dict and all(isinstance(k, (str, int)) for k in structure.context):
        return "{" + ", ".join(f"{k!r}: {p}" for k, p in zip(structure.context, parts, strict=True)) + "}", used
    return None, used
