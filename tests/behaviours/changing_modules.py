"""Changes of modules: children, attributes, hooks, parameters and buffers."""

import collections
import enum
import functools
import os
import sys
import types

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from tests.behaviours import changing_helper as helper
from tests.behaviours.changing import Settings, case, module

# Containers of modules


def layers(count=3):
    torch.manual_seed(0)
    return nn.ModuleList(nn.Linear(3, 3) for _ in range(count))


def through(self, x):
    for layer in self.layers:
        x = layer(x)
    return x


@case
def append_to_a_module_list():
    yield (model := module(through, layers=layers()))
    model.layers.append(nn.ReLU())
    yield


@case
def delete_from_a_module_list():
    yield (model := module(through, layers=layers()))
    del model.layers[0]
    yield


@case
def replace_in_a_module_list():
    yield (model := module(through, layers=layers()))
    model.layers[1] = nn.Sequential(model.layers[1], nn.Tanh())
    yield


@case
def insert_into_a_module_list():
    yield (model := module(through, layers=layers()))
    model.layers.insert(0, nn.Tanh())
    yield


@case
def extend_an_empty_module_list():
    yield (model := module(through, layers=layers(0)))
    model.layers.extend([nn.Tanh(), nn.ReLU()])
    yield


@case
def swap_two_layers():
    yield (model := module(through, layers=layers()))
    model.layers[0], model.layers[2] = model.layers[2], model.layers[0]
    yield


@case
def a_module_list_inside_a_list():
    yield (model := module(lambda self, x: self.groups[0][0](x), groups=[layers()]))
    model.groups[0] = nn.ModuleList([nn.Tanh()])
    yield


@case
def append_to_a_sequential():
    yield (model := nn.Sequential(nn.Tanh()))
    model.append(nn.ReLU())
    yield


@case
def replace_in_a_module_dict():
    blocks = nn.ModuleDict({"a": nn.Tanh(), "b": nn.ReLU()})
    yield (model := module(lambda self, x: self.blocks["a"](x), blocks=blocks))
    model.blocks["a"] = nn.Sigmoid()
    yield


@case
def add_to_a_module_dict():
    blocks = nn.ModuleDict({"a": nn.Tanh()})
    yield (model := module(lambda self, x: sum(b(x) for b in self.blocks.values()), blocks=blocks))
    model.blocks["b"] = nn.ReLU()
    yield
    del model.blocks["a"]
    yield


@case
def another_order_in_a_module_dict():
    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x

    yield (model := module(forward, blocks=nn.ModuleDict({"a": nn.Tanh(), "b": nn.Softplus()})))
    first = model.blocks.pop("a")
    model.blocks["a"] = first
    yield


@case
def a_key_that_a_module_dict_gets():
    def forward(self, x):
        return self.blocks["extra"](x) if "extra" in self.blocks else x

    yield (model := module(forward, blocks=nn.ModuleDict()))
    model.blocks["extra"] = nn.Tanh()
    yield


@case
def a_plain_list_of_modules():
    blocks = [nn.Tanh()]
    yield lambda x: functools.reduce(lambda x, block: block(x), blocks, x)
    blocks.append(nn.Softplus())
    yield
    blocks[0] = nn.ReLU()
    yield


@case
def a_parameter_list():
    def forward(self, x):
        return sum((p * x for p in self.scales), x)

    yield (model := module(forward, scales=nn.ParameterList([nn.Parameter(torch.ones(3))])))
    model.scales.append(nn.Parameter(torch.full((3,), 2.0)))
    yield


@case
def a_variable_bound_to_another_model():
    model = nn.Linear(3, 3)
    yield lambda x: model(x)
    torch.manual_seed(1)
    model = nn.Linear(3, 3)
    yield


@case
def a_global_bound_to_another_model():
    global MODEL
    torch.manual_seed(0)
    MODEL = nn.Linear(3, 3)
    yield _use_the_model
    MODEL = nn.Linear(3, 3)
    yield


def _use_the_model(x):
    return MODEL(x)


@case
def an_attribute_bound_to_another_model():
    holder = types.SimpleNamespace(model=nn.Tanh())
    yield lambda x: holder.model(x)
    holder.model = nn.ReLU()
    yield


@case
def a_child_replaced():
    yield (model := nn.Sequential(nn.Sequential(nn.Tanh())))
    model[0][0] = nn.ReLU()
    yield


@case
def a_child_that_was_none():
    yield (model := module(lambda self, x: x if self.norm is None else self.norm(x), norm=None))
    del model.norm
    model.norm = nn.Tanh()
    yield


# Attributes of modules


def by(self, x):
    return x * self.scale


@case
def a_number_of_a_module():
    yield (model := module(by, scale=2.0))
    model.scale = 3.0
    yield


@case
def a_function_of_a_module():
    yield (model := module(lambda self, x: self.act(x), act=torch.tanh))
    model.act = torch.relu
    yield
    model.act = lambda x: x * 2
    yield
    model.act = F.softplus
    yield


@case
def a_dtype_of_a_module():
    yield (model := module(lambda self, x: x.to(self.kind), kind=torch.float64))
    model.kind = torch.float16
    yield


class Mode(enum.Enum):
    ADD = 1
    MULTIPLY = 2


@case
def an_enum_of_a_module():
    yield (model := module(lambda self, x: x + 2 if self.mode is Mode.ADD else x * 3, mode=Mode.ADD))
    model.mode = Mode.MULTIPLY
    yield


@case
def a_sentinel():
    first, second = object(), object()
    yield (model := module(lambda self, x: x + 2 if self.mode is first else x * 3, mode=first))
    model.mode = second
    yield


@case
def a_set_of_a_module():
    yield (model := module(lambda self, x: x * 2 if "a" in self.on else x * 3, on={"a"}))
    model.on.clear()
    yield
    model.on = {"a", "b"}
    yield


@case
def a_frozenset_of_a_module():
    yield (model := module(lambda self, x: x * 2 if "a" in self.on else x * 3, on=frozenset("a")))
    model.on = frozenset("b")
    yield


@case
def nested_containers_of_a_module():
    yield (model := module(lambda self, x: x * self.cfg["a"][0]["b"], cfg={"a": [{"b": 2.0}]}))
    model.cfg["a"][0]["b"] = 3.0
    yield
    model.cfg["a"] = [{"b": 4.0}]
    yield
    model.cfg["a"][0]["b"] = 5.0
    yield


@case
def a_dataclass_of_a_module():
    yield (model := module(lambda self, x: x * self.cfg.scale, cfg=Settings()))
    model.cfg.scale = 3.0
    yield
    model.cfg = Settings(4.0)
    yield
    model.cfg.scale = 5.0
    yield


@case
def an_object_of_a_module():
    class Holder:
        pass

    holder = Holder()
    holder.scale = 2.0
    yield (model := module(lambda self, x: x * self.cfg.scale, cfg=holder))
    holder.scale = 3.0
    yield
    model.cfg = Holder()
    model.cfg.scale = 4.0
    yield


@case
def a_range_of_a_module():
    yield (model := module(lambda self, x: x * sum(self.r), r=range(3)))
    model.r = range(5)
    yield


@case
def a_deque_of_a_module():
    yield (model := module(lambda self, x: x * sum(self.q), q=collections.deque([1.0, 2.0])))
    model.q.append(3.0)
    yield
    model.q[0] = 7.0
    yield


@case
def an_ordered_dict_of_a_module():
    def forward(self, x):
        for k, v in self.d.items():
            x = x * v if k == "mul" else x + v
        return x

    yield (model := module(forward, d=collections.OrderedDict(mul=2.0, add=3.0)))
    model.d.move_to_end("mul")
    yield
    model.d["add"] = 4.0
    yield


@case
def an_array_of_a_module():
    yield (model := module(lambda self, x: x * torch.tensor(self.a), a=numpy.ones(3, numpy.float32)))
    model.a[1] = 5.0
    yield
    model.a = numpy.full(3, 2.0, numpy.float32)
    yield


@case
def an_array_used_without_a_copy():
    array = numpy.ones(3, numpy.float32)
    yield lambda x: x * torch.from_numpy(array)
    array[1] = 5.0
    yield


@case
def a_scalar_of_numpys():
    yield (model := module(by, scale=numpy.float32(2.0)))
    model.scale = numpy.float32(3.0)
    yield
    model.scale = numpy.float64(3.0)
    yield


@case
def a_long_list_of_a_module():
    yield (model := module(lambda self, x: x * sum(self.numbers), numbers=[1.0] * 200))
    model.numbers[150] = 5.0
    yield
    model.numbers.append(1.0)
    yield


@case
def tensors_in_a_list_of_a_module():
    yield (model := module(lambda self, x: sum((x * t for t in self.ts), x), ts=[torch.ones(3)]))
    model.ts[0] = torch.full((3,), 5.0)
    yield
    model.ts.append(torch.ones(3))
    yield
    model.ts[0].fill_(7.0)
    yield
    model.ts = [torch.full((3,), 9.0)]
    yield


@case
def tensors_in_a_dict_of_a_module():
    yield (model := module(lambda self, x: x * self.ts["a"], ts={"a": torch.ones(3)}))
    model.ts["a"] = torch.full((3,), 5.0)
    yield
    model.ts = {"a": torch.full((3,), 6.0)}
    yield


@case
def tensors_in_an_object():
    holder = types.SimpleNamespace(t=torch.ones(3), inner=types.SimpleNamespace(ts=(torch.ones(3),)))
    yield lambda x: x * holder.t + holder.inner.ts[0]
    holder.t = torch.full((3,), 5.0)
    yield
    holder.inner.ts = (torch.full((3,), 6.0),)
    yield
    holder.inner = types.SimpleNamespace(ts=(torch.full((3,), 7.0),))
    yield


@case
def a_tensor_that_is_kept_twice():
    one = torch.ones(3)
    holder = types.SimpleNamespace(a=one, b=[one])
    yield lambda x: x * holder.a + holder.b[0]
    holder.a = torch.full((3,), 5.0)
    yield
    holder.b[0] = torch.full((3,), 6.0)
    yield


@case
def a_shape_that_is_only_asked_for():
    yield (model := module(lambda self, x: x * self.t.shape[0], t=torch.ones(3)))
    model.t = torch.ones(5)
    yield


# Submodules that are read and not called


@case
def a_flag_of_a_submodule_that_is_not_called():
    yield (model := module(lambda self, x: x * 2 if self.norm.training else x * 3, norm=nn.BatchNorm1d(3)))
    model.norm.eval()
    yield


@case
def an_attribute_of_a_submodule_that_is_not_called():
    yield (model := module(lambda self, x: F.dropout(x, self.drop.p, self.drop.training), drop=nn.Dropout(0.0)))
    model.drop.p = 1.0
    yield


@case
def a_parameter_of_a_submodule_that_is_not_called():
    yield (model := module(lambda self, x: F.linear(x, self.fc.weight, self.fc.bias), fc=nn.Linear(3, 3)))
    model.fc.bias = None
    yield
    model.fc.weight = nn.Parameter(torch.ones(3, 3))
    yield


@case
def the_number_of_children():
    yield (model := module(lambda self, x: x * len(self.layers), layers=layers(2)))
    model.layers.append(nn.Tanh())
    yield


@case
def all_parameters():
    yield (model := module(lambda self, x: x * sum(p.sum() for p in self.parameters()), fc=nn.Linear(3, 3)))
    model.fc.register_parameter("extra", nn.Parameter(torch.ones(2)))
    yield


@case
def parameters_that_need_gradients():
    def forward(self, x):
        return x * sum(p.requires_grad for p in self.parameters())

    yield (model := module(forward, fc=nn.Linear(3, 3)))
    model.fc.bias.requires_grad_(False)
    yield


@case
def all_modules():
    yield (model := module(lambda self, x: x * sum(isinstance(m, nn.ReLU) for m in self.modules()), a=nn.Sequential()))
    model.a.append(nn.ReLU())
    yield


@case
def a_child_by_a_computed_name():
    def forward(self, x):
        for number in range(2):
            x = getattr(self, f"layer{number}")(x)
        return x

    yield (model := module(forward, layer0=nn.Tanh(), layer1=nn.Tanh()))
    model.layer1 = nn.Softplus()
    yield


@case
def an_attribute_by_a_computed_name():
    yield (model := module(lambda self, x: x * getattr(self, "sc" + "ale".lower()), scale=2.0))
    model.scale = 3.0
    yield


@case
def the_dict_of_a_module():
    yield (model := module(lambda self, x: x * self.__dict__["scale"] * vars(self)["other"], scale=2.0, other=2.0))
    model.scale = 3.0
    yield
    model.other = 3.0
    yield


# Hooks


@case
def a_global_hook():
    yield nn.Linear(3, 3)
    handle = nn.modules.module.register_module_forward_hook(lambda m, args, out: out * 2)
    try:
        yield
    finally:
        handle.remove()
    yield


@case
def a_global_pre_hook():
    yield nn.Linear(3, 3)
    handle = nn.modules.module.register_module_forward_pre_hook(lambda m, args: (args[0] * 2,))
    try:
        yield
    finally:
        handle.remove()
    yield


@case
def a_hook_on_a_submodule():
    yield (model := nn.Sequential(nn.Linear(3, 3), nn.Tanh()))
    handle = model[0].register_forward_hook(lambda m, args, out: out * 2)
    yield
    handle.remove()
    yield
    model[0].register_forward_pre_hook(lambda m, args: (args[0] * 3,))
    yield


@case
def what_a_hook_reads():
    cfg = types.SimpleNamespace(scale=2.0)
    model = nn.Sequential(nn.Linear(3, 3))
    model[0].register_forward_hook(lambda m, args, out: out * cfg.scale)
    yield model
    cfg.scale = 3.0
    yield


# Parameters and buffers


@case
def a_parametrization():
    class Double(nn.Module):
        def forward(self, w):
            return w * 2

    yield (model := nn.Sequential(nn.Linear(3, 3)))
    parametrize.register_parametrization(model[0], "weight", Double())
    yield
    parametrize.remove_parametrizations(model[0], "weight", leave_parametrized=False)
    yield


@case
def tied_weights():
    yield (model := nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)))
    model[1].weight = model[0].weight
    yield
    model[1].weight = nn.Parameter(torch.ones(3, 3))
    yield


@case
def a_parameter_that_needs_no_gradient_any_more():
    yield (model := nn.Linear(3, 3))
    model.weight.requires_grad_(False)
    yield
    model.weight.requires_grad_(True)
    yield


@case
def a_buffer_that_was_none():
    model = module(lambda self, x: x if self.mask is None else x * self.mask)
    model.register_buffer("mask", None)
    yield model
    model.mask = torch.full((3,), 5.0)
    yield
    model.mask = None
    yield


@case
def a_buffer_that_is_registered_later():
    yield (model := module(lambda self, x: x * self.mask if hasattr(self, "mask") else x))
    model.register_buffer("mask", torch.full((3,), 5.0))
    yield


@case
def a_parameter_that_becomes_none():
    yield (model := nn.Linear(3, 3))
    model.bias = None
    yield


@case
def weights_that_a_recurrent_network_keeps_in_a_list():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.rnn = nn.GRU(3, 3)

        def forward(self, x):
            return self.rnn(x)[0]

    yield (model := Model())
    model.rnn.weight_ih_l0 = nn.Parameter(torch.ones(9, 3))
    yield


@case
def environment():

    yield lambda x: x * float(os.environ.get("FOREGRAD_TEST_SCALE", "2.0"))
    os.environ["FOREGRAD_TEST_SCALE"] = "3.0"
    try:
        yield
    finally:
        del os.environ["FOREGRAD_TEST_SCALE"]


@case
def a_module_found_among_all_modules():
    yield lambda x: x * sys.modules[helper.__name__].SCALE
    helper.SCALE = 3.0
    try:
        yield
    finally:
        helper.SCALE = 2.0


@case
def globals_by_name():
    yield _by_name
    globals()["SCALE"] = 3.0
    try:
        yield
    finally:
        globals()["SCALE"] = 2.0


SCALE = 2.0


def _by_name(x):
    return x * globals()["SC" + "ALE"]
