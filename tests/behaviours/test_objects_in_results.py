"""Objects of Python classes in results: each call makes a new one, with the tensors of that call."""

import functools
import gc
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import also_compiled, compiled, leaf

ROOT = Path(__file__).parents[2]


class Layer:
    def __init__(self, keys, values):
        self.keys, self.values, self.length = keys, values, keys.shape[0]

    def total(self):
        return self.keys.sum() + self.values.sum()


class Cache:
    kind = Layer

    def __init__(self, layers, settings=None):
        self.layers, self.settings, self.kind_of_layer = layers, settings, Layer

    def total(self):
        return sum(layer.total() for layer in self.layers)


class Slotted(Layer):
    __slots__ = ("__hidden", "shown")

    def __init__(self, x):
        super().__init__(x, x + 1)
        self.__hidden, self.shown = x * 5, [x]

    def hidden(self):
        return self.__hidden


SETTINGS = {"name": "settings"}


def cached(x):
    layers = [Layer(x * n, x.sin()) for n in range(2)]
    return x * 2, Cache(layers, {**SETTINGS})


@also_compiled
def test_an_object_is_made_at_each_call():
    function, x = compiled(cached), leaf(3)
    (_, first), (_, second), (_, expected) = function(x), function(x), cached(x)
    assert type(second) is Cache
    assert type(second.layers[0]) is Layer
    assert first is not second
    assert first.layers[0] is not second.layers[0]
    assert second.kind_of_layer is Layer
    assert second.settings == SETTINGS
    assert second.layers[1].length == 3
    torch.testing.assert_close(second.total(), expected.total())
    assert len(function.captures) == 1


def test_gradients_arrive_through_it():
    x = leaf(3)
    (expected,) = torch.autograd.grad(cached(x)[1].total(), x)
    (found,) = torch.autograd.grad(compiled(cached)(x)[1].total(), x)
    assert torch.equal(found, expected)


def test_slots_and_private_attributes_are_kept():
    function, x = compiled(Slotted), leaf(3)
    function(x)
    made = function(x)
    assert torch.equal(made.hidden(), x * 5)
    assert torch.equal(made.shown[0], x)
    assert torch.equal(made.total(), x.sum() + (x + 1).sum())


class Shadowed:
    def __init__(self, x):
        self.__dict__["value"] = x * 2

    @property
    def value(self):
        return self.__dict__["value"] + 1


def test_attributes_behind_properties_are_kept():
    x = leaf(3)
    assert torch.equal(compiled(Shadowed)(x).value, Shadowed(x).value)


def closed_over(x):
    y = x * 2
    return lambda: y


def of_a_new_class(x):
    class New:
        def __init__(self):
            self.x = x * 2

    return New()


KEPT = Cache([])


@functools.lru_cache
def remembered():
    return Cache([])


def collected(x):
    made = Layer(x, x)
    gc.collect(0)
    return made


class Base:
    __slots__ = ("value",)


class Derived(Base):
    __slots__ = ("value",)

    def __init__(self, x):
        Base.value.__set__(self, x * 2)
        self.value = x * 3


def referred_to(x):
    made = Layer(x, x)
    SEEN.add(made)
    return made


SEEN = weakref.WeakSet()
REFUSED = {
    "closure": closed_over,
    "new class": of_a_new_class,
    "set": lambda x: {x * 2},
    "there before": lambda x: (x * 2, KEPT),
    "remembered": lambda x: (x * 2, remembered()),
    "collected": collected,
    "slots of one name": Derived,
    "weakly": referred_to,
    "parameter": lambda x: nn.Parameter(x * 2),
    "parameter of an input": nn.Parameter,
    "parameter in an object": lambda x: Layer(x, nn.Parameter(x * 2)),
}


@pytest.mark.parametrize("function", REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_made_again_is_refused(function):
    with pytest.raises(fg.CaptureError):
        compiled(function)(leaf(3))


KEYS = [lambda x: {x * 2: 1}, lambda x: {Layer(x, x): 1}, lambda x: [{(1, Layer(x, x)): x}]]


@pytest.mark.parametrize("function", KEYS)
def test_tensors_and_objects_as_keys_are_refused(function):
    with pytest.raises(fg.CaptureError, match=r"returns a dict with a \w+ as a key"):
        compiled(function)(leaf(3))


SCRIPT = """
import sys, torch, foregrad as fg
from tests.behaviours.test_objects_in_results import cached
function = fg.compile(cached, backend="eager", cache=sys.argv[1])
x = torch.arange(3.0)
found, expected = function(x)[1], cached(x)[1]
assert torch.equal(found.total(), expected.total()) and type(found) is type(expected)
print(fg.explain(function))
"""


def test_a_second_process_finds_it(tmp_path):
    def run():
        command = [sys.executable, "-c", SCRIPT, str(tmp_path / "cache")]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "found without tracing" not in run()
    assert "found without tracing" in run()


def test_transformers_return_their_caches():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    )
    tokens, function = torch.arange(8).view(2, 4), fg.compile(model, backend="eager")
    function(input_ids=tokens, labels=tokens)
    found, expected = function(input_ids=tokens, labels=tokens), model(input_ids=tokens, labels=tokens)
    assert torch.equal(found.loss, expected.loss)
    assert type(found.past_key_values) is type(expected.past_key_values)
    assert found.past_key_values.get_seq_length() == 4
    for one, other in zip(found.past_key_values.layers, expected.past_key_values.layers, strict=True):
        assert torch.equal(one.keys, other.keys)
        assert torch.equal(one.values, other.values)
    assert len(function.captures) == 1
