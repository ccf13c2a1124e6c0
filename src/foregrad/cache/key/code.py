"""Code: functions and everything that they can reach, as ingredients.

What a function does is its bytecode and what its names stand for: defaults, closure, globals, and whatever these reach.
Code of libraries is known by their versions; only what hangs on it (a closure, something wrapped) is looked at.
"""

from __future__ import annotations

import builtins
import collections
import functools
import importlib.util
import sys
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from foregrad.cache.key.bytecode import Use, facts_of
from foregrad.cache.key.classes import show_reference
from foregrad.cache.key.libraries import SourceLibrary, library_of, library_of_function
from foregrad.cache.key.ops import is_op_home, show_ops
from foregrad.cache.key.unhashable_reads import doubt_about, doubt_about_module, steady_names, words
from foregrad.cache.key.walk import KeyWalk, Shower, Showers
from foregrad.torch_private.global_state import undisabled

_ABSENT: Any = object()


def show_function(walk: KeyWalk, function: FunctionType, place: str) -> str:
    """A function by its name; the user's own is looked at in full, later."""
    function = undisabled(function)
    library = library_of_function(function)
    if library is not None:
        return _library_function(walk, library, function)
    name, is_new = walk.name(f"function {full_name(function)}", function)
    if is_new:
        walk.queue.append(lambda: _look_at(walk, name, function))
    return f"<{name}>"


def full_name(function: FunctionType) -> str:
    return f"{function.__globals__.get('__name__', '?')}.{function.__qualname__}"


def _library_function(walk: KeyWalk, library: SourceLibrary, function: FunctionType) -> str:
    """A function of a library: its name, and what was put into it."""
    name = full_name(function)
    show_reference(walk, library, str(function.__globals__["__name__"]), function.__name__)
    held = (
        () if name.startswith("torch._dynamo.") else function.__closure__ or ()
    )  # what torch.compile notes beside code
    is_found_by_name = "<" not in function.__qualname__ and not function.__code__.co_filename.startswith("<string")
    if not held and is_found_by_name:
        return f"<{library.name} {name}>"
    known, is_new = walk.name(f"{library.name} {name}", function)
    if is_new:
        cells = [_cell_text(walk, cell, f"the closure of {known}") for cell in held if not _is_weak_table(cell)]
        walk.add(known, f"{facts_of(function.__code__).digest} {cells}", f"holds {', '.join(cells) or 'nothing'}")
    return f"<{known}>"


def _is_weak_table(cell: CellType) -> bool:
    """What `functools.singledispatch` has found out before."""
    return type(_contents(cell)) is WeakKeyDictionary


def _contents(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _ABSENT


def _cell_text(walk: KeyWalk, cell: CellType, place: str) -> str:
    value = _contents(cell)
    return "nothing" if value is _ABSENT else walk.show(value, place)


def doubts_about(function: FunctionType) -> tuple[str, ...]:
    """What the code of a function may read that no key can see. What its names stand for is not looked into."""
    walk = KeyWalk(_BLIND)
    _look_at(walk, f"function {full_name(function)}", function)
    return tuple(walk.doubts)


# -- a function of the user's -------------------------------------------------------------------------------


def _look_at(walk: KeyWalk, name: str, function: FunctionType) -> None:
    """Everything that a function depends on."""
    facts = facts_of(function.__code__)
    own = name.removeprefix("function ")
    before, walk.owner = walk.owner, own
    walk.names |= facts.names
    walk.is_dynamic |= facts.is_dynamic
    for ask, line in facts.asks:
        walk.doubt(f"{_where(own, function, line)} asks for {ask}, through which it may see what the key does not")
    refers = _parameters(walk, function, own)
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        refers += _variable(walk, f"closure of {own}: {variable}", variable, _contents(cell), facts.uses, function)
    for use in facts.uses:
        if use.kind == "global":
            refers += _global(walk, use, function, own)
        elif use.kind == "import":
            refers += _import(walk, use, function, own)
    for key, value in vars(function).items():
        walk.add(f"attribute of {own}: {key}", walk.show(value, f"{own}.{key}"))
    text = "\n".join([facts.digest, *dict.fromkeys(refers)])
    notes = [f"# where {one}" for one in dict.fromkeys(refers) if "<function" in one or "<class" in one]
    walk.add(name, text, "\n".join([facts.source, *notes]))
    walk.owner = before


def _where(own: str, function: FunctionType, line: int) -> str:
    file = function.__code__.co_filename.rpartition("/")[2]
    return f"{own} ({file}, line {line})"


def _parameters(walk: KeyWalk, function: FunctionType, own: str) -> list[str]:
    """Default values: functions and classes among them are told by their names."""
    code = function.__code__
    given = function.__defaults__ or ()
    names = code.co_varnames[code.co_argcount - len(given) : code.co_argcount]
    found = {**dict(zip(names, given, strict=True)), **(function.__kwdefaults__ or {})}
    return [line for key, value in found.items() for line in _told(walk, f"default of {own}: {key}", key, value)]


def _told(walk: KeyWalk, name: str, short: str, value: Any) -> list[str]:
    """A value that a function reads: data are an ingredient, anything that is code is a line of the function's."""
    text = walk.show(value, name)
    if issubclass(type(value), (FunctionType, BuiltinFunctionType, type, ModuleType)):
        return [f"{short} is {text}"]
    walk.add(name, text)
    return [f"{short} is told apart"]


def _variable(
    walk: KeyWalk, name: str, short: str, value: Any, uses: tuple[Use, ...], function: FunctionType
) -> list[str]:
    """A variable of the closure. Of a module, only what code asks of it matters."""
    if value is _ABSENT:
        return [f"{short} is empty"]
    if not issubclass(type(value), ModuleType):
        return _told(walk, name, short, value)
    reads = [use for use in uses if use.kind == "closure" and use.name == short]
    return [line for use in reads for line in _chain(walk, value, use, function, walk.owner, name)]


def _global(walk: KeyWalk, use: Use, function: FunctionType, own: str) -> list[str]:
    space = function.__globals__
    value = space.get(use.name, _ABSENT)
    if value is _ABSENT:
        value = vars(builtins).get(use.name, _ABSENT)
        if value is _ABSENT:
            return [f"{use.name} is not there"]
        reason = doubt_about("python", "builtins", use.name) if _is_built_in(value) else None
        if reason is not None and not (use.name in ("hash", "id") and function.__name__ == "__hash__"):
            walk.doubt(f"{_where(own, function, use.line)} uses {use.name}, which {reason}")
        return [] if _is_built_in(value) else _told(walk, f"builtin {use.name}", use.name, value)
    name, _ = walk.name(f"global {space.get('__name__', '?')}.{use.name}", space)
    if issubclass(type(value), ModuleType):  # `isinstance` believes what an object says of its class
        return _chain(walk, value, use, function, own, name)
    if f"{walk.prefix}{name}" in walk.ingredients:
        return [f"{use.name} is told apart"]
    return _told(walk, name, use.name, value)


def _is_built_in(value: Any) -> bool:
    is_code = isinstance(value, (BuiltinFunctionType, type)) and value.__module__ in ("builtins", "io", "_io")
    return is_code or value is ... or value is NotImplemented or isinstance(value, bool)


# -- modules ------------------------------------------------------------------------------------------------


def _chain(walk: KeyWalk, value: Any, use: Use, function: FunctionType, own: str, name: str) -> list[str]:
    """What `torch.nn.functional.relu` stands for, where `torch` is a module."""
    rest = list(use.attributes)
    short = use.name
    while issubclass(type(value), ModuleType) and rest:
        if is_op_home(value):
            return [f"{short} is {show_ops(walk, value, rest)}"]
        here, attribute = value, rest.pop(0)
        library = library_of(here.__name__)
        reason = doubt_about(library.name, here.__name__, attribute) if library is not None else None
        if reason is not None:
            walk.doubt(f"{_where(own, function, use.line)} uses {here.__name__}.{attribute}, which {reason}")
            return [f"{short}.{attribute} is not looked at"]
        value = _attribute(walk, here, attribute, library)
        short, name = f"{short}.{attribute}", f"{name}.{attribute}"
        if value is _ABSENT:
            return [f"{short} is not there"]
    return _told(walk, name, short, value)


def _attribute(walk: KeyWalk, module: ModuleType, name: str, library: SourceLibrary | None) -> Any:
    """An attribute of a module; one that makes attributes when asked is asked only if it is a library's."""
    found = vars(module).get(name, _ABSENT)
    if found is not _ABSENT:
        return found
    if library is not None:
        return getattr(module, name, _ABSENT)
    if _makes_attributes(module):
        walk.doubt(f"the module {module.__name__} makes {name} when it is asked for it")
    return _ABSENT


def _makes_attributes(module: ModuleType) -> bool:
    return "__getattr__" in vars(module) or type(module) is not ModuleType


def show_module(walk: KeyWalk, module: ModuleType, place: str) -> str:
    """A module of Python's that is handed around: whatever has a name that code asks for matters."""
    if is_op_home(module):
        return show_ops(walk, module, [])
    library = library_of(module.__name__)
    if library is not None:
        show_reference(walk, library, module.__name__, None)
        reason = doubt_about_module(library.name, module.__name__)
        if reason is not None:
            walk.doubt(f"{walk.owner or place} hands around the module {module.__name__}, which {reason}")
    name, is_new = walk.name(f"module {module.__name__}", module)
    if is_new and not (library is not None and library.name == "python"):
        if library is None and _makes_attributes(module):
            walk.doubt(f"the module {module.__name__} makes attributes when it is asked for them")
        members = vars(module) if library is None else {k: v for k, v in vars(module).items() if _may_be_changed(v)}
        for key, value in members.items():
            if key not in _OF_MODULES:
                walk.dormant.append((key, functools.partial(_wake, walk, module, key, value)))
    return f"<{name}>"


_OF_MODULES = words("__builtins__ __cached__ __doc__ __file__ __loader__ __package__ __path__ __spec__")


def _may_be_changed(value: Any) -> bool:
    """What users put into modules of libraries: flags, and functions of their own."""
    if isinstance(value, FunctionType):
        return library_of_function(value) is None
    return isinstance(value, (bool, int, float, str))


def _wake(walk: KeyWalk, module: ModuleType, key: str, value: Any) -> None:
    name, _ = walk.name(f"global {module.__name__}.{key}", vars(module))
    walk.add(name, walk.show(value, name))


def _import(walk: KeyWalk, use: Use, function: FunctionType, own: str) -> list[str]:
    """A module that is imported when the function runs."""
    package = str(function.__globals__.get("__package__") or "")
    full = importlib.util.resolve_name(use.name, package) if use.name.startswith(".") else use.name
    loaded = [sys.modules.get(full), sys.modules.get(full.partition(".")[0])]
    top = full.partition(".")[0]
    reason = doubt_about_module("python", full) if top in sys.stdlib_module_names else None
    if reason is not None and not (use.attributes and set(use.attributes) <= steady_names(full)):
        walk.doubt(f"{_where(own, function, use.line)} imports {full}, which {reason}")
    if loaded[0] is None:
        if full.partition(".")[0] not in (*sys.stdlib_module_names, "torch"):
            walk.doubt(f"{_where(own, function, use.line)} imports {full}, which is not loaded yet")
        return [f"imports {full}"]
    for name in use.attributes if library_of(full) is None else ():
        if name not in vars(loaded[0]) and name != "*":
            walk.doubt(f"{_where(own, function, use.line)} imports {name} from {full}, which is not loaded yet")
    return [f"imports {walk.show(module, full)}" for module in loaded if module is not None]


# -- other callables ----------------------------------------------------------------------------------------


def _show_method(walk: KeyWalk, value: MethodType, place: str) -> str:
    return f"<method {walk.show(value.__func__, place)} of {walk.show(value.__self__, f'{place}.__self__')}>"


def _show_partial(walk: KeyWalk, value: Any, place: str) -> str:
    parts = (value.func, value.args, value.keywords, *([vars(value)] if vars(value) else []))
    return f"<{type(value).__name__} {', '.join(walk.show(one, f'{place}.{i}') for i, one in enumerate(parts))}>"


def _show_built_in(walk: KeyWalk, value: Any, place: str) -> str:
    """A function in C: of a library, or of something that the key cannot look into."""
    owner = value.__self__
    walk.is_dynamic |= value is getattr or value is hasattr
    if owner is not None and not isinstance(owner, (ModuleType, type)):
        return f"<{value.__name__} of {walk.show(owner, f'{place}.__self__')}>"
    home = owner.__module__ if isinstance(owner, type) else value.__module__ or getattr(owner, "__name__", "?")
    library = library_of(home)
    if library is None:
        walk.doubt(f"{place} is {home}.{value.__name__}, a function in C that is no part of an installed library")
        return f"<{home}.{value.__qualname__}>"
    show_reference(walk, library, home, value.__name__)
    return f"<{library.name} {home}.{value.__qualname__}>"


def _show_cached(walk: KeyWalk, value: Any, place: str) -> str:
    wrapped = value.__wrapped__
    is_users = not isinstance(wrapped, FunctionType) or library_of_function(wrapped) is None
    if is_users and value.cache_info().currsize:
        walk.doubt(f"{place} has results in its cache (functools.lru_cache) that may be of other times")
    held = {name: one for name, one in vars(value).items() if name not in _OF_WRAPPERS}
    return f"<cached {value.cache_parameters()} {walk.show(wrapped, place)} {walk.show(held, place) if held else ''}>"


_OF_WRAPPERS = words("__wrapped__ __module__ __name__ __qualname__ __doc__ __annotations__ cache_parameters __dict__")


def _show_property(walk: KeyWalk, value: property, place: str) -> str:
    return f"<property {walk.show((value.fget, value.fset, value.fdel), place)}>"


def _show_descriptor(walk: KeyWalk, value: Any, place: str) -> str:
    home = value.__objclass__
    return f"<{home.__module__}.{home.__qualname__}.{value.__name__}>"


def _wrapping(text: str, attribute: str) -> Shower:
    return lambda walk, value, place: f"<{text} {walk.show(getattr(value, attribute), place)}>"


_Pair = collections.namedtuple("_Pair", "first")

CALLABLES: dict[type, Shower] = {
    FunctionType: show_function,
    ModuleType: show_module,
    MethodType: _show_method,
    BuiltinFunctionType: _show_built_in,
    functools.partial: _show_partial,
    functools.partialmethod: _show_partial,
    functools._lru_cache_wrapper: _show_cached,
    property: _show_property,
    staticmethod: _wrapping("static", "__func__"),
    classmethod: _wrapping("of the class", "__func__"),
    functools.cached_property: _wrapping("cached property", "func"),
    **{
        type(one): _show_descriptor
        for one in (str.join, str.__len__, vars(dict)["fromkeys"], type.__dict__["__abstractmethods__"], slice.start)
    },
    type(_Pair.first): lambda w, v, p: f"<item {v.__reduce__()[1][0]}>",
    type("".__len__): lambda w, v, p: f"<{v.__name__} of {w.show(v.__self__, p)}>",
}

#: Tells nothing of any value.
_BLIND = Showers({}, {object: lambda w, v, p: ""}, lambda w, cls: "", frozenset({object}))
