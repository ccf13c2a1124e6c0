"""What of libraries is not told in a read state, each with its reason. A change in here is not seen by a key."""

from __future__ import annotations

from functools import cache
from types import FunctionType
from typing import Any

from foregrad.keys.doubts import words
from foregrad.runtime.nodes import original_of
from foregrad.runtime.walk import Boundary
from foregrad.substrate_keys import undisabled

#: Variables of modules, and of classes in them, that say what this process is and not what code does in it: times,
#: locks, what is open, alive or was said before, numbers of processes and threads, folders, the state of generators
#: (draws are refused), and what a module notes when it is first used.
VARIABLES_LEFT_OUT = {
    home: frozenset(words(names))
    for home, names in {
        "sys": "modules path path_importer_cache path_hooks meta_path stdin stdout stderr __stdin__ __stdout__ "
        "__stderr__ last_type last_value last_traceback last_exc executable _base_executable prefix exec_prefix "
        "base_prefix base_exec_prefix pycache_prefix orig_argv",
        "threading": "_active _limbo _main_thread _dangling _shutdown_locks _shutdown_locks_lock _active_limbo_lock "
        "_counter",
        "multiprocessing.process": "_current_process _parent_process _children _process_counter _dangling",
        "multiprocessing.util": "_afterfork_registry _afterfork_counter _finalizer_registry _finalizer_counter",
        "linecache": "cache",
        "inspect": "modulesbyfile _filesbymodname",
        "weakref": "_registry _index_iter _dirty _registered_with_atexit",
        "warnings": "filters onceregistry _onceregistry _filters_version",
        "_warnings": "filters _onceregistry",
        "logging": "_startTime _handlers _handlerList _lock lastResort raiseExceptions",
        "random": "_inst",
        "os": "environb",
        "torch.autograd.profiler": "_cupti_monitor_checked _cupti_monitor_module",
    }.items()
}

#: A module that holds patterns put together in the order of a set.
_IN_NO_ORDER = "tokenize"

#: Packages that captures and compilers load, and fill: a process that finds its programs does not. Settings of the
#: compilers are in the settings of torch.
_COMPILERS = words(
    "foregrad sympy mpmath torch._dynamo torch._inductor torch._functorch torch._subclasses torch._decomp torch._refs "
    "torch._prims torch._prims_common torch._meta_registrations torch._export torch.export torch.fx "
    "torch.utils._sympy torch._guards torch._logging torch._library torch._ops torch._compile"
)


def boundary_around(loaded_meanwhile: frozenset[str]) -> Boundary:
    """What a read state does not go into: also modules that a capture has loaded, which are as their files say."""

    def is_outside(module: str) -> bool:
        if module == _IN_NO_ORDER or module in loaded_meanwhile:
            return True
        return any(module == one or module.startswith(f"{one}.") for one in _COMPILERS)

    return Boundary(cache(is_outside), _unwrapped)


def _unwrapped(value: Any) -> Any:
    """A function without what stands in for it while some thread records, or what keeps torch's compiler out of it."""
    return undisabled(original_of(value)) if type(value) is FunctionType else value
