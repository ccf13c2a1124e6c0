"""Differences between eager and compiled that `docs/differences.md` names: a comparison ends there, as `documented`.

- An error of eager's that is not raised: that of a kernel which nobody needs, of a selective checkpoint, of a tensor
  with a history that gets another geometry under `no_grad`, of a backward that reaches no input, past a view made under
  `no_grad`, of a leaf inside that a write has moved into the graph, or of an argument that is one of several views, of
  which a call does not know it.
- A result that autograd refuses, as one of several views whose base was changed, may be refused by the call, and may
  be fine where the function gives that base other memory.
- A reentrant checkpoint beside inputs that share memory or are written, refused by its backward; one past which
  gradients are asked for, which eager refuses.
- A gradient of some arguments, or from some of the results, refused because of a write that only others would mind.
- With an input that has no elements, whether a gradient could be differentiated again, to no end.
- The version counter and the strides of a gradient that the function asks for: the engine adds up in place, and it is
  not known of an input by which view op it was made of another.
- The stride of a dimension of size 1, and where in its storage a tensor without elements begins.
- `requires_grad_(False)` on a view whose base has got a history since.
- The sign of a zero in a gradient through a checkpoint: its terms may be added in another order.
- A second derivative past an input that is made no leaf by `detach_()`.
- An input that a backward does not reach: the op outside that has made it looks at what it has saved.
- Whether a backward notices a write to the `.data` of a tensor, and the gradient of a view as such after one.
"""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.entry import Entry
from tests.fuzz.program import FuzzProgram

MISSHAPEN = "invalid gradient at index"

#: Errors of eager's that are not raised, and where.
NOT_RAISED = {
    "is out of bounds for dimension": "call ",
    "Index put requires the source and destination dtypes match": "call ",
    "shape mismatch: value tensor of shape": "call ",
    "Expected reduction dim": "call ",
    "on any region computed under selective activation checkpoint": "backward of ",
    MISSHAPEN: "backward of ",
    "leaf variable has been moved into the graph interior": "backward of ",
}
PARTIAL = ", not of all"
EMPTY = ", with an input that has no elements"
SEVERAL = "returns multiple views"
FLAG = "you can only change requires_grad flags of leaf variables"
WRITTEN = "modified by an inplace operation"
REENTRANT = "When use_reentrant=True, torch.utils.checkpoint is incompatible"


def is_known(one: Entry, other: Entry, program: FuzzProgram) -> bool:
    """Whether what eager shows and what a compiled function shows differ as the documentation says."""
    if other.what == "gradients of arguments" and any(text in other.detail for text in (WRITTEN, SEVERAL)):
        return one.what.startswith("gradient of ")  # eager has them
    if other.what == "second derivative" and WRITTEN in other.detail:
        if one.what.endswith(" with create_graph") and one.fact is None:
            return True  # eager does not come to the op outside that has made the input
        return any("detach_()" in s.text for s in program.body)
    is_asked_for = one.what in ("second derivative", "gradients of arguments")
    if is_asked_for and (MISSHAPEN in one.detail or REENTRANT in one.detail):
        return True
    if one.what != other.what:
        return False
    if one.what.startswith("backward of ") and REENTRANT in other.detail:
        return one.fact == "went through" and any("use_reentrant=True" in s.text for s in program.body)
    if one.what.endswith(PARTIAL) and one.fact == "went through":
        return WRITTEN in other.detail
    if one.what.startswith("call ") and one.fact == "went through":
        return SEVERAL in other.detail or (FLAG in other.detail and _clears_flags(program))
    if one.what.endswith(" has grad_fn, is leaf") and one.fact == "refused by autograd":
        return any(".data = " in s.text for s in program.body)
    if one.what.endswith(" requires grad"):
        return one.detail == EMPTY and one.fact
    if one.what.endswith(" layout"):
        return differs_in_strides_of_one(one.fact, other.fact) or _is_inner_gradient(one, program)
    if one.what.endswith(" version"):
        return _is_inner_gradient(one, program)
    return other.fact == "went through" and _is_not_raised(one, program)


def _clears_flags(program: FuzzProgram) -> bool:
    return any("requires_grad_(False)" in s.text for s in program.body)


def _is_inner_gradient(one: Entry, program: FuzzProgram) -> bool:
    return ": output" in one.what and any("autograd.grad(" in s.text for s in program.body)


def _is_not_raised(one: Entry, program: FuzzProgram) -> bool:
    is_one_of_several = any(".unbind(" in s.text or ".split(" in s.text for s in program.setup)
    if is_one_of_several and SEVERAL in one.detail:
        return True
    if WRITTEN in one.detail and ("no_grad" in program.source() or any(".data" in s.text for s in program.body)):
        return True
    return any(text in one.detail and one.what.startswith(where) for text, where in NOT_RAISED.items())


def differs_in_strides_of_one(one: Any, other: Any) -> bool:
    """Whether two layouts differ only in the stride of dimensions of size 1, or where nothing begins."""
    if 0 in one[1]:
        return one[:3] == other[:3]
    moved = [(size, i, j) for size, i, j in zip(one[1], one[2], other[2], strict=False) if i != j]
    return one[:2] + one[3:] == other[:2] + other[3:] and all(size == 1 for size, _, _ in moved)


def differs_in_zeros(one: torch.Tensor, other: torch.Tensor, program: FuzzProgram) -> bool:
    """Whether two gradients differ in signs of zeros only, which go by the order in which a checkpoint adds terms."""
    return torch.equal(one, other) and any("again(" in s.text for s in program.body)
