"""Changes of code: functions, closures, defaults, patches, other modules."""

import contextlib
import functools
import importlib
import logging
import threading
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils import _pytree as pytree

from tests.behaviours import changing_helper as helper
from tests.behaviours.changing import case, module

# Functions


@case
def default_arguments():
    def f(x, scale=2.0):
        return x * scale

    yield f
    f.__defaults__ = (3.0,)
    yield


@case
def defaults_that_are_changed_in_place():
    def f(x, scales=[2.0]):  # noqa: B006  that is the case
        return x * scales[0]

    yield f
    f.__defaults__[0][0] = 3.0
    yield


@case
def keyword_defaults():
    def f(x, *, scale=2.0):
        return x * scale

    yield f
    f.__kwdefaults__["scale"] = 3.0
    yield


@case
def defaults_of_a_helper():
    def scaled(x, scale=2.0):
        return x * scale

    yield lambda x: scaled(x)
    scaled.__defaults__ = (3.0,)
    yield


@case
def a_tensor_as_a_default():
    def f(x, w=torch.ones(3)):  # noqa: B008  that is the case
        return x * w

    yield f
    f.__defaults__ = (torch.full((3,), 5.0),)
    yield


@case
def keywords_of_a_partial():
    yield (f := functools.partial(lambda x, scale: x * scale, scale=2.0))
    f.keywords["scale"] = 3.0
    yield


@case
def a_list_among_the_arguments_of_a_partial():
    scales = [2.0]
    yield functools.partial(lambda scales, x: x * scales[0], scales)
    scales[0] = 3.0
    yield


@case
def a_tensor_in_a_partial():
    yield (f := functools.partial(lambda x, w: x * w, w=torch.ones(3)))
    f.keywords["w"] = torch.full((3,), 5.0)
    yield


@case
def a_partial_inside():
    scaled = functools.partial(lambda x, scale: x * scale, scale=2.0)
    yield lambda x: scaled(x)
    scaled.keywords["scale"] = 3.0
    yield
    scaled = functools.partial(lambda x, scale: x + scale, scale=2.0)
    yield


def wraps(cfg):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(*args):
            return f(*args) * cfg["scale"]

        return wrapper

    return decorate


@case
def the_closure_of_a_wrapper():
    cfg = {"scale": 2.0}
    yield wraps(cfg)(lambda x: x + 1)
    cfg["scale"] = 3.0
    yield


@case
def the_closure_of_a_wrapped_function():
    scale = 2.0
    yield wraps({"scale": 1.0})(lambda x: x * scale)
    scale = 3.0
    yield


@case
def nested_closures():
    scale = 2.0

    def outer(x):
        def inner(y):
            return y * scale

        return inner(x)

    yield outer
    scale = 3.0
    yield


@case
def the_closure_of_a_helper():
    scale = 2.0

    def first(x):
        return x * scale

    scaled = first
    yield lambda x: scaled(x)
    scale = 3.0
    yield

    def second(x):
        return x + 1

    scaled = second
    yield


@case
def a_decorated_method():
    cfg = {"scale": 2.0}
    made = module(wraps(cfg)(lambda self, x: x + 1))
    yield made
    cfg["scale"] = 3.0
    yield


@case
def a_context_manager_of_the_library():
    scale = 2.0

    @torch.enable_grad()
    def scaled(x):
        return x * scale

    yield lambda x: scaled(x)
    scale = 3.0
    yield


@case
def a_context_manager_of_the_user():
    scale = 2.0

    @contextlib.contextmanager
    def scaling():
        yield scale

    def f(x):
        with scaling() as s:
            return x * s

    yield f
    scale = 3.0
    yield


@case
def the_code_of_a_function():
    def scaled(x):
        return x * 2

    yield lambda x: scaled(x)
    scaled.__code__ = (lambda x: x * 3).__code__
    yield


@case
def an_attribute_of_a_function():
    def f(x):
        return x * f.scale

    f.scale = 2.0
    yield f
    f.scale = 3.0
    yield


@case
def an_attribute_that_a_function_gets():
    def f(x):
        return x * getattr(f, "scale", 2.0)

    yield f
    f.scale = 3.0
    yield


@case
def a_recursive_function():
    depth = {"most": 2}

    def f(x, level=0):
        return x if level == depth["most"] else f(x * 2, level + 1)

    yield f
    depth["most"] = 3
    yield


# Other modules, patches


@case
def a_flag_in_another_module():
    yield lambda x: helper.scaled(x)
    helper.SCALE = 3.0
    try:
        yield
    finally:
        helper.SCALE = 2.0


@case
def a_flag_read_from_another_module():
    yield lambda x: x * helper.SCALE
    helper.SCALE = 3.0
    try:
        yield
    finally:
        helper.SCALE = 2.0


@case
def a_container_in_another_module():
    yield lambda x: x * helper.OPTIONS["scales"][0]
    helper.OPTIONS["scales"][0] = 3.0
    try:
        yield
    finally:
        helper.OPTIONS["scales"][0] = 2.0


@case
def the_globals_of_a_helpers_helper():
    yield lambda x: helper.scaled_twice(x)
    helper.SCALE = 3.0
    try:
        yield
    finally:
        helper.SCALE = 2.0


@case
def a_tensor_among_the_globals_of_a_helper():
    yield lambda x: helper.weighted(x)
    before, helper.WEIGHT = helper.WEIGHT, torch.full((3,), 5.0)
    try:
        yield
    finally:
        helper.WEIGHT = before


@contextlib.contextmanager
def patched(owner, name, value):
    before = vars(owner)[name]
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@case
def a_patched_helper():
    yield lambda x: helper.scaled(x)
    with patched(helper, "scaled", lambda x: x * 7):
        yield
    yield


@case
def a_helper_of_a_helper_that_is_patched():
    yield lambda x: helper.scaled_twice(x)
    with patched(helper, "scaled", lambda x: x * 7):
        yield


@case
def a_patched_function_of_torch():
    yield lambda x: F.softplus(x) + torch.sin(x)
    with patched(F, "softplus", lambda x: x * 7):
        yield
    with patched(torch, "sin", lambda x: x * 7):
        yield


@case
def a_function_of_torch_that_a_module_of_torch_calls():
    yield nn.ReLU()
    with patched(F, "relu", lambda x, inplace=False: x * 7):
        yield


@case
def a_patched_method_of_a_tensor():
    yield lambda x: x.norm() * x
    with patched(torch.Tensor, "norm", lambda x: x.sum() * 7):
        yield


@case
def a_patched_method_of_a_class():
    class Model(nn.Module):
        def forward(self, x):
            return self.act(x)

        def act(self, x):
            return x * 2

    yield Model()
    Model.act = lambda self, x: x * 3
    yield
    Model.forward = lambda self, x: x * 7
    yield


@case
def a_patched_method_of_an_instance():
    yield (model := module(lambda self, x: self.act(x), act=torch.tanh))
    model.act = types.MethodType(lambda self, x: x * 3, model)
    yield


@case
def a_patched_forward_of_a_class_of_torch():
    yield nn.Sequential(nn.Linear(3, 3))
    with patched(nn.Linear, "forward", lambda self, x: x * 7):
        yield


@case
def a_method_that_a_subclass_gets():
    base = type("Base", (nn.Module,), {"forward": lambda self, x: self.act(x), "act": lambda self, x: x * 2})
    derived = type("Derived", (base,), {})
    yield derived()
    derived.act = lambda self, x: x * 3
    yield


@case
def another_class_of_a_module():
    base = type("Base", (nn.Module,), {"forward": lambda self, x: self.inner(x)})
    inner = type("Inner", (nn.Module,), {"forward": lambda self, x: x * 2})
    other = type("Other", (inner,), {"forward": lambda self, x: x * 3})
    model = base()
    model.inner = inner()
    yield model
    model.inner.__class__ = other
    yield


@case
def a_name_that_hides_a_builtin():
    yield lambda x: x * max(2, 3)
    globals()["max"] = lambda a, b: 7
    try:
        yield
    finally:
        del globals()["max"]


@case
def the_replaced_forward_of_an_instance():
    model = nn.Linear(3, 3)
    before = model.forward
    model.forward = lambda x: before(x) * 2
    yield model
    model.forward = lambda x: before(x) * 3
    yield
    del model.forward
    yield


@case
def the_replaced_forward_of_a_submodule():
    yield (model := nn.Sequential(nn.Linear(3, 3)))
    before = model[0].forward
    model[0].forward = lambda x: before(x) * 2
    yield


@case
def results_that_were_kept():
    scale = 2.0

    @functools.lru_cache
    def kept(factor):
        return factor * scale

    kept(1)
    yield lambda x: x * kept(1)
    scale = 3.0
    yield  # eager has the old one too
    kept.cache_clear()
    yield


# Results that a function keeps, and modules that are imported inside


def _kept(decorate):
    values = {"scale": 2.0}

    @decorate
    def scale(name="scale"):
        return [values[name]]

    scale()
    yield lambda x: x * scale()[0]
    values["scale"] = 3.0
    scale.cache_clear()
    scale()
    yield
    scale()[0] = 4.0
    yield


@case
def a_cached_result():
    yield from _kept(functools.lru_cache)


@case
def a_cached_result_of_a_cache_without_limit():
    yield from _kept(functools.cache)


@case
def cached_results_for_arguments():
    values = {"a": 2.0, "b": 3.0}
    scale = functools.lru_cache(lambda name, *, by=1.0: values[name] * by)
    scale("a"), scale("b", by=2.0)
    yield lambda x: x * scale("a") * scale("b", by=2.0)
    values["b"] = 5.0
    scale.cache_clear()
    yield


@case
def an_attribute_of_a_function_with_a_cache():
    @functools.lru_cache
    def cached():
        return 1.0

    cached.scale = 2.0
    yield lambda x: x * cached.scale
    cached.scale = 3.0
    yield


@case
def a_function_in_a_table_of_torchs():
    class Mine(torch.distributions.Normal):
        pass

    def divergence(x):
        one, other = (Mine(mean, torch.ones_like(x), validate_args=False) for mean in (x, x * 2))
        return torch.distributions.kl_divergence(one, other)

    yield divergence
    torch.distributions.register_kl(Mine, Mine)(lambda one, other: one.loc * 7)
    yield


@case
def a_method_of_a_class_of_torchs():
    def f(x):
        return torch.distributions.Normal(x, 1.0, validate_args=False).log_prob(x * 2)

    yield f
    before = torch.distributions.Normal.log_prob
    torch.distributions.Normal.log_prob = lambda self, x: x * 3
    try:
        yield
    finally:
        torch.distributions.Normal.log_prob = before


@case
def a_module_that_is_imported_inside():
    def f(x):
        from tests.behaviours import changing_helper

        return x * changing_helper.SCALE

    yield f
    helper.SCALE = 3.0
    yield
    helper.SCALE = 2.0


@case
def a_module_that_is_imported_by_its_name():
    def f(x):
        name = ".".join(["tests", "behaviours", "changing_helper"])
        return x * importlib.import_module(name).SCALE

    yield f
    helper.SCALE = 3.0
    yield
    helper.SCALE = 2.0


@case
def what_a_thread_has_for_itself():
    local = threading.local()
    local.scale = 2.0
    yield lambda x: x * local.scale
    local.scale = 3.0
    yield


@case
def a_container_that_torchs_trees_know():
    pair = type("Pair", (), {})()
    yield lambda x: x * len(pytree.tree_leaves([pair, [1, 2]]))
    pytree.register_pytree_node(type(pair), lambda one: ([1, 2], None), lambda leaves, context: pair)
    yield


@case
def an_attribute_of_a_logger():
    logger = logging.getLogger("scaled")
    logger.scale = 2.0
    yield lambda x: x * logger.scale
    logger.scale = 3.0
    yield
