"""What a child of `os.fork` has to find as new is made in one place, `process/forks.py`, or is a `TemporaryChange`."""

import ast

from tests.house.source import modules

#: What holds threads, or waits for them, and has to be made anew in a child.
WAITED_FOR = ("Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "allocate_lock")
POOLS = ("ThreadPoolExecutor", "ThreadPool", "ProcessPoolExecutor", "Pool", "Executor")
REPLACES = ("register_at_fork", "patch")

#: Calls that are right elsewhere, by file, with the reason.
ELSEWHERE = {
    ("process/forks.py", "RLock"): "makes them",
    ("process/forks.py", "Condition"): "made anew by `in_child`",
    ("process/forks.py", "register_at_fork"): "the one place",
    ("runtime/guards/python_objects.py", "Lock"): "asks for the type",
    ("runtime/guards/python_objects.py", "RLock"): "asks for the type",
    ("cache/key/data.py", "Lock"): "asks for the type",
    ("cache/key/data.py", "RLock"): "asks for the type",
    ("graph/policies.py", "ThreadPoolExecutor"): "one for each process, by its number",
    ("torch_private/while_compiling.py", "patch"): "settings of Inductor, which are those of one thread",
}


def test_locks_pools_and_replacements_are_known_to_forks():
    found = {}
    for module in modules().values():
        scoped = {id(item.context_expr) for n in ast.walk(module.tree) if isinstance(n, ast.With) for item in n.items}
        for node in ast.walk(module.tree):
            name = called(node.func) if isinstance(node, ast.Call) else ""
            is_over = name in POOLS and id(node) in scoped  # at the end of a block of the thread that made it
            if name in WAITED_FOR + POOLS + REPLACES and not is_over:
                found[module.file, name] = f"{module.file}:{node.lineno}: {name}"
    unknown = [where for key, where in found.items() if key not in ELSEWHERE]
    assert not unknown, "\n".join(["use `lock`, `in_child` or a `TemporaryChange`, see process/forks.py:", *unknown])
    assert not ELSEWHERE.keys() - found.keys(), "these are gone: take them out of the table"


def called(func: ast.expr) -> str:
    """The last name of what is called; for `mock.patch.object` that is `patch`."""
    if isinstance(func, ast.Attribute):
        return "patch" if called(func.value) == "patch" else func.attr
    return func.id if isinstance(func, ast.Name) else ""
