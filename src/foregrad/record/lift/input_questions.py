"""Questions: what Python asks of an input and is not told by a tensor: how it lies in memory, which bits it has.

x.storage_offset()    x.is_conj()    x.retains_grad    x._base is None

Sizes, strides, dtypes and devices are checked at each call anyway. Any other answer is checked where it was given, and
refused where a tensor without data would give another than the real one.
"""

from __future__ import annotations

import dis
import sys
from types import FrameType
from typing import Any

import torch

from foregrad.core.errors import CaptureError
from foregrad.core.tensor_properties import answer_of, same_answer
from foregrad.record.frames import is_users
from foregrad.record.lift.inputs import Inputs, Lifted
from foregrad.record.origins import where
from foregrad.record.python.world_reads import words
from foregrad.record.recorder import Recorder

#: What follows from that which every call checks of a tensor.
_FOLLOWS = words(
    "shape size stride dim ndim ndimension numel nelement nbytes itemsize element_size dtype type layout device "
    "get_device dim_order names has_names requires_grad is_leaf is_contiguous is_non_overlapping_and_dense "
    "is_floating_point is_complex is_signed is_sparse is_sparse_csr is_quantized is_nested is_mkldnn is_cpu is_cuda "
    "is_ipu is_xpu is_xla is_hpu is_mps is_mtia is_maia is_ort is_vulkan is_meta is_nonzero is_same_size "
    "_has_symbolic_sizes_strides __len__"
)
#: What an input may be marked as, while its ghost is not: the program gets what the mark stands for.
_BITS = ("is_conj", "is_neg")
_ASKS = ("is_", "_is_", "has_", "_has_", "storage_offset")


class Questions:
    """The answers that the function was given, by input and name."""

    def __init__(self, recorder: Recorder, inputs: Inputs) -> None:
        self._recorder = recorder
        self._inputs = inputs
        self.answers: dict[Lifted, dict[str, Any]] = {}

    def asked(self, func: Any, tensor: torch.Tensor, answer: Any) -> Any:
        """What the function is told where a function of torch, of a tensor alone, has returned no new tensor."""
        name = _name(func)
        if name is None or name in _FOLLOWS or self._recorder.phase:
            return answer
        if name == "storage_offset":  # of a view too it depends on where the input begins
            storage = self._recorder.alias(tensor).storage
            self._note(name, [one for one in self._inputs.all if one.alias.storage is storage])
        elif (lifted := self._inputs.of_ghost(tensor)) is not None and lifted.real is not None:
            truth = answer_of(lifted.real, name)
            if name in _BITS or (name != "_version" and same_answer(answer, truth)):
                self._note(name, [lifted])
                return truth
            asking = _asking_frame()
            if is_users(asking.f_code) and not (name in _OR_NONE and _compares_with_none(asking)):
                raise CaptureError(
                    f"the function asks an input {lifted.spec} for its {name}, of which a capture cannot tell.\n"
                    f"{where(self._recorder.module)}\nAsk outside, and pass the answer."
                )
            if name == "_base":
                self._note("_is_view", [lifted])
                return truth
        return answer

    def _note(self, name: str, inputs: list[Lifted]) -> None:
        for lifted in inputs:
            if lifted.real is not None:
                self.answers.setdefault(lifted, {})[name] = answer_of(lifted.real, name)


def _asking_frame() -> FrameType:
    """The code that asks. Methods of tensors that are written in Python ask on behalf of others."""
    frame = sys._getframe(3)
    while frame.f_back is not None and frame.f_code.co_filename in _METHODS:
        frame = frame.f_back
    return frame


def _compares_with_none(frame: FrameType) -> bool:
    """Whether code does nothing with an answer but to ask whether it is None."""
    following = (one for one in dis.get_instructions(frame.f_code) if one.offset > frame.f_lasti)
    first, second = (next(following, None) for _ in range(2))
    if first is None or second is None:
        return False
    return first.opname.endswith("_NONE") or (first.argval is None and second.opname == "IS_OP")


#: Of which code often asks only whether it is there.
_OR_NONE = ("grad_fn", "_base")
_METHODS = (torch.Tensor.is_shared.__code__.co_filename, torch.overrides.__file__)


def _name(func: Any) -> str | None:
    """The name of a property of tensors, or of a method that asks for something and changes nothing."""
    name = getattr(func, "__name__", "")
    if name == "__get__":
        return getattr(func.__self__, "__name__", None)
    return name if name.startswith(_ASKS) and hasattr(torch.Tensor, name) else None
