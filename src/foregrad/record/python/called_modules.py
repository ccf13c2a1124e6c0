"""Which modules the function calls, and the path of the one that is running."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from foregrad.record.origins import where
from foregrad.record.python.native_code import refuse_native
from foregrad.record.recorder import Recorder
from foregrad.record.session import MODULE
from foregrad.record.user_objects import Held
from foregrad.torch_private.dispatch import no_function_modes

#: Modules that take another path when a torch function mode is on: it is put aside while they run in evaluation.
_HAVE_FAST_PATHS = (torch.nn.MultiheadAttention, torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer)


def modes_of(module: Any) -> AbstractContextManager[Any]:
    """With which modes of torch a module runs."""
    has_fast_path = isinstance(module, _HAVE_FAST_PATHS) and not module.training
    return no_function_modes() if has_fast_path else nullcontext()


class CalledModules:
    """The modules called while recording, with the path of each."""

    def __init__(self, recorder: Recorder, objects: Held) -> None:
        self._recorder = recorder
        self._objects = objects
        self._names: dict[int, str] = {}  # paths of modules, by id
        self._stack: list[str] = []
        self._guards: list[Any] = []
        self.on_enter: Callable[[torch.nn.Module], None] | None = None

    @property
    def called(self) -> dict[int, torch.nn.Module]:
        return self._objects.now.called

    @property
    def tops(self) -> dict[int, tuple[str, torch.nn.Module]]:
        """Modules that others are parts of, with their paths."""
        return self._objects.now.tops

    def path(self, module: torch.nn.Module) -> str:
        path = self._names.get(id(module))
        if path is None:
            path = type(module).__name__
            self.add_names(path, module)
        return path

    def add_names(self, prefix: str, module: torch.nn.Module) -> None:
        """Name a module and all below it; the first name of a module stays."""
        self.tops.setdefault(id(module), (prefix, module))
        for name, child in module.named_modules(prefix=prefix):
            self._names.setdefault(id(child), name)

    def enter(self, module: torch.nn.Module) -> None:
        refuse_native(module, where(self._recorder.module))
        self.called.setdefault(id(module), module)
        if self.on_enter is not None:
            self.on_enter(module)
        self._stack.append(self._recorder.module)
        self._guards.append(modes_of(module))
        self._guards[-1].__enter__()
        self._recorder.module = self.path(module)

    def exit(self) -> None:
        if self._stack:
            self._recorder.module = self._stack.pop()
            self._guards.pop().__exit__(None, None, None)

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Follow module calls of this thread."""
        with MODULE.by(self._call):
            yield

    def _call(self, original: Callable[..., Any], module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        self.enter(module)
        try:
            return original(module, *args, **kwargs)
        finally:
            self.exit()
