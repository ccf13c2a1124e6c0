"""Changes of data: values that compare equal, config objects."""

import argparse
import array
import collections
import ctypes
import dataclasses
import multiprocessing
import threading
import types
import weakref

import numpy as np
import torch
import torch.nn.functional as F

from tests.behaviours.changing import CASES, Settings, case, module

# Changes that compare equal

EQUAL = {
    "an int and a float": (2, 2.0),
    "a bool and an int": (True, 1),
    "two zeros": (0.0, -0.0),
    "a NaN and itself": (float("nan"), float("nan")),
    "complex zeros": (0j, -0j),
}


def describing(x, value):
    """Everything that Python can tell of a value."""
    while isinstance(value, (list, tuple)):
        value = value[0]
    value = value["k"] if isinstance(value, dict) else value
    return x * 3, type(value).__name__, repr(value)


def _equal(before, after, wrap):
    def make():
        yield (model := module(lambda self, x: describing(x, self.value), value=wrap(before)))
        model.value = wrap(after)
        yield

    return make


for _name, (_before, _after) in EQUAL.items():
    for _kind, _wrap in {
        "": lambda v: v,
        " in a list": lambda v: [v],
        " in a tuple": lambda v: (v,),
        " in a dict": lambda v: {"k": v},
        " deep": lambda v: [({"k": v},)],
    }.items():
        CASES[_name + _kind] = _equal(_before, _after, _wrap)


@case
def equal_values_inside_one_list():
    values = [2, 3]
    yield lambda x: describing(x, values)
    values[0] = 2.0
    yield


@case
def keys_that_are_equal():
    values = {1: 2.0}
    yield lambda x: (x * 2, [repr(k) for k in values])
    del values[1]
    values[True] = 2.0
    yield


# Config objects


@case
def an_argparse_namespace():
    args = argparse.Namespace(scale=2.0)
    yield lambda x: x * args.scale
    args.scale = 3.0
    yield
    args = argparse.Namespace(scale=4.0)
    yield


@case
def a_nested_config():
    config = types.SimpleNamespace(model=types.SimpleNamespace(dropout=0.0))
    yield lambda x: F.dropout(x, config.model.dropout)
    config.model.dropout = 1.0
    yield
    config.model = types.SimpleNamespace(dropout=0.0)
    yield


class Plain:
    scale = 2.0


@case
def an_attribute_of_a_class():
    yield lambda x: x * Plain.scale
    Plain.scale = 3.0
    try:
        yield
    finally:
        Plain.scale = 2.0


@case
def an_attribute_that_hides_that_of_the_class():
    config = Plain()
    yield lambda x: x * config.scale
    config.scale = 3.0
    yield
    del config.scale
    yield


@case
def an_attribute_of_a_base_class():
    base = type("Base", (), {"scale": 2.0})
    config = type("Derived", (base,), {})()
    yield lambda x: x * config.scale
    base.scale = 3.0
    yield
    type(config).scale = 4.0
    yield


class Slots:
    __slots__ = ("scale",)

    def __init__(self, scale):
        self.scale = scale


@case
def a_slot():
    config = Slots(2.0)
    yield lambda x: x * config.scale
    config.scale = 3.0
    yield
    config = Slots(4.0)
    yield


@case
def a_tensor_in_a_slot():
    config = Slots(torch.ones(3))
    yield lambda x: x * config.scale
    config.scale = torch.full((3,), 5.0)
    yield


@case
def a_property_that_reads_another_attribute():
    class Config:
        def __init__(self):
            self._scale = 2.0

        @property
        def scale(self):
            return self._scale * 2

    config = Config()
    yield lambda x: x * config.scale
    config._scale = 3.0
    yield
    Config.scale = property(lambda self: 7.0)
    yield


class ByName:
    def __init__(self, **data):
        self.__dict__["_data"] = data

    def __getattr__(self, name):
        try:
            return self._data[name]
        except KeyError:
            raise AttributeError(name) from None


@case
def a_config_that_looks_names_up():
    config = ByName(scale=2.0)
    yield lambda x: x * config.scale
    config._data["scale"] = 3.0
    yield


class AsDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


@case
def a_dict_with_attributes():
    config = AsDict(scale=2.0, inner=AsDict(scale=1.0))
    yield lambda x: x * config.scale * config["inner"].scale
    config.scale = 3.0
    yield
    config.inner.scale = 4.0
    yield


@case
def a_user_dict():
    config = collections.UserDict(scale=2.0)
    yield lambda x: x * config["scale"]
    config["scale"] = 3.0
    yield


@case
def a_default_dict():
    config = collections.defaultdict(lambda: 2.0)
    yield lambda x: x * config.get("scale", 1.0)
    config["scale"] = 3.0
    yield


@case
def a_named_tuple():
    config = collections.namedtuple("Config", "scale names")(2.0, [1.0])
    yield lambda x: x * config.scale * config.names[0]
    config.names[0] = 3.0
    yield
    config = config._replace(scale=5.0)
    yield


@case
def a_frozen_dataclass():
    frozen = dataclasses.make_dataclass("Frozen", ["scale"], frozen=True)
    config = frozen(2.0)
    yield lambda x: x * config.scale
    object.__setattr__(config, "scale", 3.0)
    yield


@case
def a_dataclass_as_a_dict():
    config = Settings()
    yield lambda x: x * dataclasses.asdict(config)["scale"]
    config.scale = 3.0
    yield


@case
def a_mapping_proxy():
    entries = {"scale": 2.0}
    config = types.MappingProxyType(entries)
    yield lambda x: x * config["scale"]
    entries["scale"] = 3.0
    yield


@case
def a_callable_object():
    class Callable:
        def __init__(self):
            self.scale = 2.0

        def __call__(self, x):
            return x * self.scale

    call = Callable()
    yield call
    call.scale = 3.0
    yield
    Callable.__call__ = lambda self, x: x * 7
    yield


@case
def a_method_of_an_object():
    class Model:
        def __init__(self):
            self.cfg = {"scale": [2.0]}

        def run(self, x):
            return x * self.cfg["scale"][0]

    model = Model()
    yield model.run
    model.cfg["scale"][0] = 3.0
    yield


@case
def an_operator_of_a_class():
    class Number:
        def __init__(self, value):
            self.value = value

        def __mul__(self, x):
            return x * self.value

    number = Number(2.0)
    yield lambda x: number * x
    number.value = 3.0
    yield
    Number.__mul__ = lambda self, x: x * 7
    yield


@case
def a_descriptor():
    class Doubled:
        def __init__(self, scale):
            self.scale = scale

        def __get__(self, owner, kind=None):
            return self.scale * 2

    class Config:
        scale = Doubled(2.0)

    config = Config()
    yield lambda x: x * config.scale
    vars(Config)["scale"].scale = 3.0
    yield


@case
def a_weak_dictionary():

    holder = types.SimpleNamespace(scale=2.0)
    kept = Plain()
    kept.scale = 2.0
    reference = weakref.ref(kept)
    yield lambda x: x * reference().scale * holder.scale
    kept.scale = 3.0
    yield


# Memory, and what shows something that is kept elsewhere


@case
def attributes_of_a_thread():
    local = threading.local()
    local.scale = 2.0
    yield lambda x: x * local.scale
    local.scale = 3.0
    yield


@case
def bytes_that_can_be_changed():
    scales = bytearray([2, 3])
    yield lambda x: x * scales[0]
    scales[0] = 5
    yield


@case
def a_view_of_bytes():
    scales = bytearray([2, 3])
    view = memoryview(scales)
    yield lambda x: x * view[0]
    scales[0] = 5
    yield


@case
def an_array_of_pythons():
    scales = array.array("d", [2.0])
    yield lambda x: x * scales[0]
    scales[0] = 5.0
    yield


@case
def a_number_of_c():
    scale = ctypes.c_double(2.0)
    yield lambda x: x * scale.value
    scale.value = 5.0
    yield


@case
def a_number_in_shared_memory():
    scale = multiprocessing.Value("d", 2.0)
    yield lambda x: x * scale.value
    scale.value = 5.0
    yield


@case
def a_weak_set():
    kept = [type("Key", (), {})() for _ in range(2)]
    seen = weakref.WeakSet(kept[:1])
    yield lambda x: x * len(seen)
    seen.add(kept[1])
    yield


@case
def a_view_of_a_dict():
    scales = {"a": 2.0}
    values = scales.values()
    yield lambda x: x * sum(values)
    scales["a"] = 3.0
    yield


# Objects that a library holds too: what is met there is looked at no further, but where the function reads it


@case
def attribute_of_a_library_s_class_that_the_library_holds():
    holder, kind = types.ModuleType("holder"), np.ma.MaskedArray
    holder.kind, kind.times_of_a_test, masked = kind, 3, np.ma.masked_array([1, 2])
    yield lambda x: x * int(masked.sum()) * holder.kind.times_of_a_test
    kind.times_of_a_test = 5
    yield


@case
def mask_of_an_array_in_a_library_s_class():
    holder, kind = types.ModuleType("holder"), np.ma.MaskedArray
    holder.kind, kind.table_of_a_test = kind, np.ma.masked_array([3, 4])
    yield lambda x: x * int(holder.kind.table_of_a_test.sum())
    kind.table_of_a_test = np.ma.masked_array([3, 4], mask=[1, 0])
    yield
