"""Write a call sequence: regions that are C++ functions, called one after another without Python between them.

add, = region_0(x, w_0)                 memory = empty_strided_cpu((16384,), (1,), torch.uint8)
add_1, = region_0(add, w_1)      ──▶    add_1 = empty_strided_cpu((32, 128), (128, 1), torch.float32)
                                        series(x, w_0, memory, w_1, add_1)

What only regions of the series see lies in one piece of memory; what others need is a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foregrad.backends.cpp_wrapper import CallPlan, Result
from foregrad.backends.kernels.buffer_layout import arranged_in_order
from foregrad.backends.kernels.call_sequence import Series
from foregrad.regions.regions import RegionCall

#: In the module of a region: the function that runs a series, that which says where the region's is, and its plan.
SERIES, ADDRESS, PLAN = "kernel_series", "kernel_address", "kernel_plan"

#: Follows a function `call` in the source of a module. A table has the number of calls, and for each the address of its
#: function, the number of its arguments, and for each of these which tensor it is in, and where.
SERIES_SOURCE = r"""
#include <string>
#include <vector>

static PyObject* address(PyObject*, PyObject*) { return PyLong_FromVoidPtr(reinterpret_cast<void*>(call)); }

static void run_series(const long long* word, std::vector<char*> const& tensors) {
    std::vector<char*> data;
    for (long long calls = *word++; calls > 0; calls--) {
        auto function = reinterpret_cast<void (*)(char* const*)>(*word++);
        data.clear();
        for (long long arguments = *word++; arguments > 0; arguments--, word += 2)
            data.push_back(tensors[word[0]] + word[1]);
        function(data.data());
    }
}

static PyObject* series(PyObject*, PyObject* const* values, Py_ssize_t num_values) {
    std::string error;
    try {
        const char* table = num_values ? PyBytes_AsString(values[0]) : "";
        std::vector<char*> tensors;
        for (Py_ssize_t i = 1; i < num_values; i++) tensors.push_back(static_cast<char*>(data_of(values[i])));
        if (PyErr_Occurred()) return nullptr;
        PyThreadState* state = PyEval_SaveThread();
        try { run_series(reinterpret_cast<const long long*>(table), tensors); }
        catch (std::exception const& raised) { error = raised.what(); }
        catch (...) { error = "a kernel failed"; }
        PyEval_RestoreThread(state);
    } catch (std::exception const& raised) { error = raised.what(); }
    if (!error.empty()) PyErr_SetString(PyExc_RuntimeError, error.c_str());
    if (PyErr_Occurred()) return nullptr;
    Py_RETURN_NONE;
}
"""
SERIES_METHODS = (
    f'{{"{SERIES}", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(series)), METH_FASTCALL, ""}}, '
    f'{{"{ADDRESS}", address, METH_NOARGS, ""}}'
)

#: Bytes that a series makes before it does anything: more are shared out among several.
MOST_BYTES = 64 << 20


@dataclass(frozen=True, eq=False)
class Function:
    """A region as a function of C++: where it is, what runs it in a series, and how it is called."""

    address: Callable[[], int]
    run: Callable[..., None]
    plan: CallPlan

    @property
    def num_bytes(self) -> int:
        """What it is passed beside its arguments."""
        return self.plan.num_bytes + sum(made.num_bytes for made in self.plan.made)


def function_in(scope: dict[str, Any]) -> Function | None:
    """The function of a region, if the module that Inductor wrote for it has one."""
    return Function(scope[ADDRESS], scope[SERIES], scope[PLAN]) if PLAN in scope else None


@dataclass(eq=False)
class _Memory:
    """The data of a tensor from outside, or memory that is made."""

    name: str = ""  # the variable that holds it, if there is one
    made: str = ""  # how, in Python
    num_bytes: int = 0
    uses: list[int] = field(default_factory=list)  # the calls that use it


@dataclass(frozen=True)
class _Value:
    """A tensor in some memory; a result says where, unless it is all of it."""

    memory: _Memory
    seen: Result | None = None
    offset: int = 0  # in elements

    @property
    def place(self) -> tuple[_Memory, int]:
        return self.memory, self.offset * (self.seen.itemsize if self.seen else 1)

    def text(self) -> str:
        if self.seen is None:
            return self.memory.name
        return f"reinterpret_tensor({self.memory.name}, {self.seen.shape}, {self.seen.stride}, {self.offset})"


class Writer:
    """Writes some calls as one; `fresh` gives names for variables."""

    def __init__(self, fresh: Callable[[str], str]) -> None:
        self._fresh = fresh
        self._functions: list[Function] = []
        self._values: dict[str, _Value | None] = {}
        self._memory: list[_Memory] = []
        self._calls: list[tuple[int, list[tuple[_Memory, int]]]] = []

    def add(self, call: RegionCall, function: Function) -> None:
        """The next call."""
        plan = function.plan
        given = [self._values.get(name) or self._outside(name) for name in call.inputs]
        made = [self._made(_Memory(made=made.text, num_bytes=made.num_bytes)) for made in plan.made]
        values = [*given, *made, *([self._made(_Memory(num_bytes=plan.num_bytes))] if plan.num_bytes else [])]
        if function not in self._functions:
            self._functions.append(function)
        passed = [values[place].place for place in plan.passed]
        for memory, _ in passed:
            memory.uses.append(len(self._calls))
        self._calls.append((self._functions.index(function), passed))
        for name, result in zip(call.outputs, plan.results, strict=True):
            self._values[name] = None if result is None else _seen(values[result.memory], result)

    def _outside(self, name: str) -> _Value:
        self._values[name] = value = self._made(_Memory(name))
        return value

    def _made(self, memory: _Memory) -> _Value:
        self._memory.append(memory)
        return _Value(memory)

    def written(self, needed: Iterable[str], name_of: Callable[[Any], str]) -> list[str]:
        """Lines of Python after which the values that are needed later are there; `name_of` names the series."""
        lines, temporary = [], []
        wanted = {name: self._values[name] for name in needed}
        for name, value in wanted.items():
            if value is not None and not value.memory.name:
                value.memory.name = name if value.seen is None else self._fresh(f"{name}_memory")
                temporary += [value.memory.name] if value.seen is not None else []
                lines.append(f"{value.memory.name} = {value.memory.made}")
        inner = [memory for memory in self._memory if not memory.name and memory.uses]
        places, num_bytes = arranged_in_order(inner)
        tensors = [memory.name for memory in self._memory if memory.name and memory.uses]
        if num_bytes:
            temporary.append(self._fresh("memory"))
            tensors.append(temporary[-1])
            lines.append(f"{temporary[-1]} = empty_strided_cpu(({num_bytes},), (1,), torch.uint8)")
        lines.append(f"{name_of(self._series(tensors, places))}({', '.join(tensors)})")
        given = {name: "None" if value is None else value.text() for name, value in wanted.items()}
        lines += [f"{name} = {text}" for name, text in given.items() if name != text]
        return [*lines, *([f"del {', '.join(temporary)}"] if temporary else [])]

    def _series(self, tensors: list[str], places: dict[_Memory, int]) -> Series:
        at = {name: place for place, name in enumerate(tensors)}
        table = [len(self._calls)]
        for function, passed in self._calls:
            table += [function, len(passed)]
            for memory, offset in passed:
                is_inner = memory in places
                table += [at[memory.name] if not is_inner else len(tensors) - 1, offset + places.get(memory, 0)]
        return Series(self._functions[0].run, tuple(f.address for f in self._functions), tuple(table))


def _seen(value: _Value, result: Result) -> _Value:
    """A result in the memory of a value that the call was passed."""
    if result.is_whole:
        return value
    return _Value(value.memory, result, value.offset + result.offset)


def stretches(calls: Sequence[RegionCall], functions: Sequence[Any]) -> list[list[RegionCall]]:
    """Calls that follow each other and can be a series, and the others one by one."""
    found: list[list[RegionCall]] = []
    num_bytes = 0
    for call in calls:
        function = functions[call.region]
        is_next = found and isinstance(function, Function) and isinstance(functions[found[-1][-1].region], Function)
        if not is_next or num_bytes + function.num_bytes > MOST_BYTES:
            found.append([])
            num_bytes = 0
        found[-1].append(call)
        num_bytes += function.num_bytes if isinstance(function, Function) else 0
    return found
