"""`fg.configure`: settings of the whole process. foregrad changes none of them by itself."""

from __future__ import annotations

import re

from foregrad.cache.store.option_checks import check_flag, check_number
from foregrad.process import heap
from foregrad.torch_private.startup import set_lazy_dynamo


def configure(*, keep_freed_memory: int | str | None = None, lazy_dynamo: bool | None = None) -> None:
    """Set what is given, from now on and for the whole process; the rest stays as it is.

    `keep_freed_memory`, in bytes or as "1GiB", is how much freed memory malloc keeps for the next step before it hands
    it back to the system. It needs glibc and cannot be undone. With `lazy_dynamo` optimizers import `torch._dynamo`
    when torch.compile is first used, and not when the first one is built; False undoes that.
    """
    num_bytes = None if keep_freed_memory is None else _num_bytes(keep_freed_memory)
    if lazy_dynamo is not None:
        check_flag("lazy_dynamo", lazy_dynamo)
    if num_bytes is not None:
        heap.keep_freed_memory(num_bytes)
    if lazy_dynamo is not None:
        set_lazy_dynamo(lazy_dynamo)


_SIZE = re.compile(r"(\d+) ?(KiB|MiB|GiB)")
_UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def _num_bytes(size: int | str) -> int:
    if isinstance(size, str):
        found = _SIZE.fullmatch(size)
        if found is None:
            raise ValueError(f'keep_freed_memory is a number of bytes or a size such as "512MiB", not {size!r:.80}')
        size = int(found[1]) * _UNITS[found[2]]
    check_number("keep_freed_memory", size)
    if size > heap.MOST_KEPT:
        raise ValueError(f"keep_freed_memory is less than 2 GiB, which is the most that malloc takes, not {size} bytes")
    return size
