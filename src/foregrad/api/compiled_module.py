"""Compiled modules: the module itself, with another `forward`.

A compiled module is an instance of a subclass of the module's own class, and shares the module's `__dict__`:
parameters, buffers, submodules, hooks, flags and attributes are the same objects, whichever of the two is used. What it
has alone, its programs, lies in a slot.
"""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.parameter import is_lazy as is_uninitialized

from foregrad.api.compiled import Compiled
from foregrad.record.python.native_code import refuse_native
from foregrad.record.tracebacks import readable
from foregrad.runtime.options import Options

if TYPE_CHECKING:
    from foregrad.api.capture import Captured
    from foregrad.record.symbols.varying import Dimensions

#: What a compiled module has beside everything that its module has.
_OF_COMPILED = ("captures", "origin", "regions", "save", "timings", "verify")


class _Forward:
    """`forward` of a compiled module: the compiled one. Of its class it is the function that the module's class has, so
    that libraries can read its signature. One that is set on the module takes the place of its class's, and is
    compiled too. An instance that was made otherwise than by `compile` is a plain module."""

    def __get__(self, module: Any, kind: type) -> Any:
        if module is not None and hasattr(module, "_foregrad"):
            return compiled_of(module)
        return super(CompiledForward, kind if module is None else module).forward  # type: ignore[misc]

    def __set__(self, module: Any, value: Any) -> None:
        vars(module)["forward"] = value

    def __delete__(self, module: Any) -> None:
        try:
            del vars(module)["forward"]
        except KeyError:
            raise AttributeError("forward") from None


class CompiledForward:
    """Mixed into the class of a compiled module: runs captured programs in place of the module's forward."""

    forward = _Forward()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # pytest leaves this frame out
        try:
            return super().__call__(*args, **kwargs)  # type: ignore[misc]
        except Exception as error:  # noqa: BLE001  # it is raised again
            raise readable(error)  # noqa: B904  # the same

    def __getattr__(self, name: str) -> Any:
        """What a module has by itself comes first."""
        try:
            return super().__getattr__(name)  # type: ignore[misc]
        except AttributeError:
            if name in _OF_COMPILED:
                return getattr(compiled_of(self), name)
            if any(name in getattr(cls, "__slots__", ()) for cls in type(self).__mro__[1:]):
                return getattr(compiled_of(self).target, name)  # a slot, which the two do not share
            raise

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *_OF_COMPILED})

    def __copy__(self) -> Any:
        compiled = compiled_of(self)
        return compile_module(copy.copy(compiled.target), compiled.options)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        compiled = compiled_of(self)
        copied = copy.deepcopy(compiled.target, memo)
        return compile_module(copied, compiled.options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickles as the module does, with the options: what is loaded is compiled, and has no programs yet."""
        compiled = compiled_of(self)
        return compile_module_again, (compiled.target, compiled.options)


def _call_lazy(self: Any, /, *args: Any, **kwargs: Any) -> Any:
    """The call where parameters get their shapes at the first one, which runs the module itself."""
    module = compiled_of(self).target
    result = module(*args, **kwargs)
    if not is_lazy(module):
        self.__class__ = _class_for(module)
    return result


def is_lazy(module: torch.nn.Module) -> bool:
    return any(is_uninitialized(p) for p in (*module.parameters(), *module.buffers()))


def compile_module(module: torch.nn.Module, options: Options) -> Any:
    """A copy of a module that shares all its state, and runs captured programs."""
    refuse_native(module)
    made: Any = object.__new__(_class_for(module))
    object.__setattr__(made, "__dict__", module.__dict__)
    object.__setattr__(made, "_foregrad", ForwardOf(module, options))
    return made


def compile_module_again(module: torch.nn.Module, options: Options) -> Any:
    """A compiled module from a pickle."""
    return compile_module(module, options.here())


def compiled_of(module: Any) -> ForwardOf:
    """The compiled forward of a compiled module."""
    found: ForwardOf = module._foregrad
    replaced = vars(module).get("forward")
    return found if replaced is None else found.replaced_by(replaced)


class ForwardOf(Compiled):
    """The programs captured of a module's forward: that of its class, or one that was set on the module."""

    def __init__(self, module: torch.nn.Module, options: Options, forward: Callable[..., Any] | None = None) -> None:
        super().__init__(forward or type(module).forward.__get__(module), options)
        self.target = module
        self._is_set = forward is not None
        self._replaced: ForwardOf | None = None

    def replaced_by(self, forward: Callable[..., Any]) -> ForwardOf:
        """The programs of a forward that was set on the module; it may call this one."""
        if self._replaced is None or self._replaced._target is not forward:
            self._replaced = ForwardOf(self.target, self.options, forward)
        return self._replaced

    _kind = "module"

    def _state(self) -> tuple[Any, ...]:
        return (self.target,)

    def _record(self, args: Any, kwargs: Any, dims: Dimensions | None = None) -> Captured:
        from foregrad.api.capture import capture_call

        if not self._is_set:  # the class may have got another one
            self._target = type(self.target).forward.__get__(self.target)
        numbers = self._numbers.plan(self.target, args, kwargs)
        captured = capture_call(
            self.target, args, kwargs, call=self._target, varying=dims, numbers=numbers, asks=self._asks(dims)
        )
        return self._told(self._numbers.after(captured, numbers))


#: Classes of compiled modules, by the class of the module and whether it is lazy.
_classes: weakref.WeakValueDictionary[tuple[type, bool], type] = weakref.WeakValueDictionary()


def _class_for(module: torch.nn.Module) -> type:
    """The class of compiled modules: the module's own, with another forward."""
    key = original, lazy = type(module), is_lazy(module)
    made = _classes.get(key)
    if made is None:
        members: dict[str, Any] = {"__module__": original.__module__, "__doc__": original.__doc__}
        members["__slots__"] = ("_foregrad",)
        members |= {"__call__": _call_lazy} if lazy else {}
        made = type(original.__name__, (CompiledForward, original), members)
        made.__qualname__ = original.__qualname__
        _classes[key] = made
    return made
