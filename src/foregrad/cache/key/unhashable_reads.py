"""Unhashable reads: what code may read that no key can see: files, the environment, clocks, random numbers, other
code."""

from __future__ import annotations


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


#: Built-in functions, and what is not seen through them.
BUILTINS = {
    "eval": "runs code that is made at run time",
    "exec": "runs code that is made at run time",
    "compile": "runs code that is made at run time",
    "__import__": "imports modules by computed names",
    "globals": "looks at variables by computed names",
    "locals": "looks at variables by computed names",
    "vars": "looks at variables by computed names",
    "dir": "looks at variables by computed names",
    "open": "reads files",
    "input": "asks the user",
    "id": "gives a number that differs from process to process",
    "hash": "gives a number that differs from process to process",
    "breakpoint": "stops for a person, who may change anything",
}

#: Attributes through which code can see what is no part of a key, or change what is.
HIDDEN_ATTRIBUTES = frozenset(
    words(
        "__annotations__ __builtins__ __closure__ __code__ __defaults__ __dict__ __doc__ __file__ __globals__ "
        "__loader__ __module__ __path__ __reduce__ __reduce_ex__ __sizeof__ __spec__ __subclasses__ __weakref__ "
        "co_code co_consts co_filename co_firstlineno co_varnames f_back f_globals f_locals gi_frame tb_frame __hash__ "
        "tb_lineno tb_next tb_lasti f_lineno f_code f_lasti co_lines co_positions co_linetable cr_frame ag_frame "
        "__traceback__ with_traceback"
    )
)

#: Parts of the standard library whose functions give the same for the same arguments.
_STEADY = frozenset(
    words(
        "__future__ _abc _collections _collections_abc _functools _operator _struct _weakrefset abc array ast "
        "base64 binascii bisect builtins cmath collections collections.abc colorsys contextlib copy copyreg "
        "dataclasses decimal difflib enum fractions functools hashlib heapq itertools json json.decoder json.encoder "
        "keyword logging math numbers operator pprint re reprlib sre_compile string struct textwrap token types "
        "typing typing_extensions unicodedata warnings zlib _decimal _heapq _bisect _json _warnings"
    )
)

#: Functions of other parts that are as steady.
_STEADY_NAMES = {
    "os": frozenset({"path", "PathLike", "fspath", "sep", "linesep"}),
    "posixpath": frozenset({"join", "basename", "dirname", "split", "splitext", "sep", "commonprefix", "normpath"}),
    "threading": frozenset({"Lock", "RLock"}),
    "_thread": frozenset({"lock", "RLock", "allocate_lock"}),
    "argparse": frozenset({"Namespace"}),
    "sys": frozenset({"float_info", "int_info", "maxsize", "version_info", "version", "platform", "byteorder"}),
    "inspect": frozenset({"isfunction", "isclass", "ismethod", "isbuiltin", "ismodule"}),
}

#: What must not be asked of the steady ones.
_UNSTEADY_NAMES = {
    "typing": {"get_type_hints": "reads annotations, which are no part of the key"},
    "torch": {
        "load": "reads files",
        "seed": "reads the clock",
        "initial_seed": "reads the state of a generator",
        "get_rng_state": "reads the state of a generator",
        "default_generator": "reads the state of a generator",
        "hub": "reads files",
        "random": "reads the state of a generator",
        "from_file": "reads files",
    },
    "torch.serialization": {"load": "reads files"},
    "torch.utils.data": {"get_worker_info": "asks the machine or other processes"},
    "torch.random": {
        "seed": "reads the clock",
        "initial_seed": "reads the state of a generator",
        "get_rng_state": "reads the state of a generator",
        "fork_rng": "reads the state of a generator",
        "default_generator": "reads the state of a generator",
    },
    "numpy": {
        "random": "draws random numbers",
        "load": "reads files",
        "loadtxt": "reads files",
        "fromfile": "reads files",
        "memmap": "reads files",
        "genfromtxt": "reads files",
        "fromregex": "reads files",
        "lib": "may read files",
    },
}

#: Parts of torch that speak of devices and of other processes.
_OF_THE_MACHINE = (
    "torch.cuda",
    "torch.mps",
    "torch.xpu",
    "torch.accelerator",
    "torch.distributed",
    "torch.backends.cpu",
)


def doubt_about(library: str, module: str, name: str) -> str | None:
    """Why the name of a module of a library cannot be trusted to give the same each time; None if it can."""
    if library == "python":
        if module == "builtins":
            return BUILTINS.get(name)
        if module in _STEADY:
            return _UNSTEADY_NAMES.get(module, {}).get(name)
        steady = _STEADY_NAMES.get(module, frozenset())
        return None if name in steady else "may read what the key does not see"
    if module.startswith("numpy.random"):
        return "draws random numbers"
    is_of_amp = name == "amp" or module.startswith("torch.cuda.amp")
    if module.startswith(_OF_THE_MACHINE) and name != "is_available" and not is_of_amp:
        return "asks the machine or other processes"
    return _UNSTEADY_NAMES.get(module, {}).get(name)


def steady_names(module: str) -> frozenset[str]:
    """The names of a module of Python's that may be asked for, though it is not steady as a whole."""
    return _STEADY_NAMES.get(module, frozenset())


def doubt_about_module(library: str, module: str) -> str | None:
    """Why a module that is handed around cannot be trusted, whatever is asked of it."""
    if library == "python" and module not in _STEADY:
        return "may read what the key does not see"
    return "draws random numbers" if module.startswith("numpy.random") else None
