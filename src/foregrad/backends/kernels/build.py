"""Build kernels: the C++ functions of a graph, built together.

A run of the C++ compiler takes most of a second for torch's headers alone, so the kernels of a graph share a file.
There are more files if the graph is large and several can be built at once.

    namespace kernel_0 { void kernel(const float* in_ptr0, float* out_ptr0) { ... } }
    namespace kernel_1 { void kernel(const float* in_ptr0, float* out_ptr0) { ... } }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foregrad.backends.cpp_wrapper import native
from foregrad.backends.kernels.write_call_sequence import ADDRESS, PLAN, SERIES, SERIES_METHODS, SERIES_SOURCE
from foregrad.torch_private.inductor import FIND_DATA_OF, build_module, num_builds_at_once
from foregrad.torch_private.inductor_text import Kernel

#: Characters of C++ that take about as long to build as torch's headers do: less is not worth a file.
_LEAST_LENGTH = 16_000
#: And characters that are built in one file rather than by several compilers, so that they can be called as one.
_MOST_LENGTH_OF_ONE = 64_000

#: The side of Python: each kernel takes tensors, and asks them where their data is.
_PYTHON = r"""
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdexcept>
#include <utility>
"""

_CALLS = r"""
union Value { void* pointer; long long integer; double number; };

template <typename T> static Value taken(PyObject* value) {
    if constexpr (std::is_pointer_v<T>) return {.pointer = data_of(value)};
    else if constexpr (std::is_integral_v<T>) return {.integer = PyLong_AsLongLong(value)};
    else return {.number = PyFloat_AsDouble(value)};
}

template <typename T> static T given(Value value) {
    if constexpr (std::is_pointer_v<T>) return static_cast<T>(value.pointer);
    else if constexpr (std::is_integral_v<T>) return static_cast<T>(value.integer);
    else return static_cast<T>(value.number);
}

template <auto kernel> struct Bound;

template <typename... T, void (*kernel)(T...)> struct Bound<kernel> {
    template <size_t... n> static void run(PyObject* const* values, std::index_sequence<n...>) {
        Value arguments[] = {taken<T>(values[n])..., {}};  // no tuple: a kernel may take a thousand of them
        if (!PyErr_Occurred()) kernel(given<T>(arguments[n])...);
    }

    static PyObject* call(PyObject*, PyObject* const* values, Py_ssize_t num_values) {
        try {
            if (num_values != sizeof...(T)) throw std::runtime_error("a kernel got another number of arguments");
            run(values, std::index_sequence_for<T...>{});
        } catch (std::exception const& error) {
            PyErr_SetString(PyExc_RuntimeError, error.what());
        } catch (...) {
            PyErr_SetString(PyExc_RuntimeError, "a kernel failed");
        }
        if (PyErr_Occurred()) return nullptr;
        Py_RETURN_NONE;
    }
};

template <auto kernel> static PyMethodDef method(const char* name) {
    return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(Bound<kernel>::call)), METH_FASTCALL, ""};
}
"""

_MODULE = r"""
static PyMethodDef methods[] = {%s, {}};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, "kernel", nullptr, -1, methods};

PyMODINIT_FUNC PyInit_kernel() {
    return find_data_of() ? PyModule_Create(&module) : nullptr;
}
"""


def build_kernels(kernels: dict[str, Kernel], text: str, *, inputs: Sequence[Any] = ()) -> Callable[[], dict[str, Any]]:
    """Begin to build kernels, given by name; what is returned waits for their functions. `text` calls them, with what
    looks like `inputs`: where it can be C++ itself, it is the one function that there is."""
    sources = list(kernels.values())
    is_short = sum(len(one.body) for one in sources) < _MOST_LENGTH_OF_ONE
    if is_short and (called := native(text, list(kernels), inputs)) is not None:
        module = build_module(in_one_file(sources, called.cpp))
        return lambda: {name: getattr(module(), name) for name in (ADDRESS, SERIES)} | {PLAN: called.plan}
    files = shared_out([len(one.body) for one in sources], num_builds_at_once()) if sources else []
    modules = [build_module(in_one_file([sources[place] for place in places])) for places in files]

    def functions() -> dict[str, Any]:
        names = list(kernels)
        found: dict[str, Any] = {}
        for places, module in zip(files, modules, strict=True):
            loaded = module()
            found |= {names[place]: getattr(loaded, f"kernel_{i}") for i, place in enumerate(places)}
        return found

    return functions


def in_one_file(kernels: Sequence[Kernel], call: str = "") -> str:
    """The source of a Python module with the functions `kernel_0`, `kernel_1`, ... or with the one function that calls
    them."""
    headers = dict.fromkeys(f"{header}\n" for one in kernels for header in one.headers)
    spaces = [f"namespace kernel_{place} {{\n{one.body}\n}}\n" for place, one in enumerate(kernels)]
    functions = {f"kernel_{place}": f"kernel_{place}::kernel" for place in range(len(kernels))}
    methods = ", ".join(f'method<{function}>("{name}")' for name, function in functions.items())
    more, methods = (call + SERIES_SOURCE, SERIES_METHODS) if call else ("", methods)
    return "".join((*headers, *spaces, _PYTHON, FIND_DATA_OF, _CALLS, more, _MODULE % methods))


def shared_out(each: Sequence[int], num_files: int) -> list[list[int]]:
    """The places of sources of these lengths, in at most so many files of about the same length, none of which is
    short."""
    most = sum(each) // _LEAST_LENGTH
    files: list[list[int]] = [[] for _ in range(max(1, min(num_files, most, len(each))))]
    lengths = [0] * len(files)
    for place in sorted(range(len(each)), key=lambda p: (-each[p], p)):
        shortest = lengths.index(min(lengths))
        files[shortest].append(place)
        lengths[shortest] += each[place]
    return files
