"""Variables of Python and its libraries that say what this process is, and not what code does in it."""

from __future__ import annotations

#: Variables of modules, and of classes in them, that say what this process is and not what code does in it: times,
#: locks, what is open, alive or was said before, numbers of processes and threads, folders, the state of generators
#: (draws are refused), and what a module notes when it is first used.
OF_THIS_PROCESS = {
    home: frozenset(names.split())
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
        "torch.utils.hooks": "next_id",
        "torch.autograd.profiler": "_cupti_monitor_checked _cupti_monitor_module",
    }.items()
}
