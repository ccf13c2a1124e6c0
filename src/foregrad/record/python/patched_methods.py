"""Methods of tensors that the user has replaced: `torch.Tensor.relu = mine`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from foregrad.core.errors import CaptureError
from foregrad.record.python.world_reads import words
from foregrad.torch_private.native_code import replaced_methods

#: Methods that captures call on tensors by themselves, and those that torch calls in the shape functions of ops.
_USED_HERE = words(
    "as_strided clone contiguous copy_ data_ptr detach detach_ dim element_size expand is_complex is_conj "
    "is_contiguous is_floating_point is_inference is_neg item new_empty new_empty_strided numel permute "
    "register_hook requires_grad_ reshape resize_ retain_grad select set_ size squeeze storage_offset stride t to "
    "tolist transpose unsqueeze untyped_storage view view_as"
)


def originals() -> Iterator[tuple[Any, Any]]:
    """What the user has put in the place of methods, each with the method. One that foregrad works with itself is
    refused: it would run more often than in eager."""
    for name, (mine, method) in replaced_methods().items():
        if name in _USED_HERE:
            code = mine.__code__
            raise CaptureError(
                f"torch.Tensor.{name} was replaced by {mine.__qualname__} ({code.co_filename}:{code.co_firstlineno}), "
                "and captures work with this method themselves.\nCall your function by a name of its own."
            )
        yield mine, method
