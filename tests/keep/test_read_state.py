"""What executed code read is part of the key of a call, in the user's modules and inside of libraries."""

import array
import ctypes
import datetime
import decimal
import functools
import itertools
import logging
import random
import struct
import time

import pytest
import torch
from torch.distributions import Normal, kl, kl_divergence

import foregrad as fg
from foregrad.cache.key.fingerprints import Fingerprints
from foregrad.cache.serialize.cached_calls import FOUND
from tests.behaviours import changing_helper


@pytest.fixture
def cache(tmp_path):
    return fg.Cache(str(tmp_path / "cache"))


def called(function, cache, x=None):
    """What a compiled function returns that was never called before, and where it comes from."""
    compiled = fg.compile(function, backend="eager", cache=cache)
    result = compiled(torch.tensor([1.0, -2.0]) if x is None else x)
    return result.tolist(), compiled.origin, compiled


def leaky(x):
    return torch.nn.functional.leaky_relu(x)


def shifted_norm(x):
    return x.norm() + 1


class Narrow(Normal):
    pass


def divergence(x):
    return kl_divergence(*(Narrow(x, 1.0, validate_args=False) for _ in range(2)))


def a_kl(p, q):
    return p.loc * 2


def another_kl(p, q):
    return p.loc * 3


def clamped(x):
    return torch.nn.Hardtanh()(x)


CHANGES = {
    "the default of a method": (
        clamped,
        lambda patch: patch.setattr(torch.nn.Hardtanh.__init__, "__defaults__", (-1.0, 0.5, False, None, None)),
    ),
    "the default of a function": (
        leaky,
        lambda patch: patch.setattr(torch.nn.functional.leaky_relu, "__defaults__", (0.5, False)),
    ),
    "a function that a library calls": (
        shifted_norm,
        lambda patch: patch.setattr(torch.linalg, "vector_norm", lambda *a, **k: torch.tensor(7.0)),
    ),
    "an entry of a registry": (divergence, lambda patch: patch.setitem(kl._KL_REGISTRY, (Narrow, Narrow), another_kl)),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_inside_of_a_library_is_seen(name, cache, monkeypatch):
    function, change = CHANGES[name]
    monkeypatch.setitem(kl._KL_REGISTRY, (Narrow, Narrow), a_kl)
    monkeypatch.setattr(kl, "_KL_MEMOIZE", {})
    first, _, _ = called(function, cache)
    again, origin, _ = called(function, cache)
    assert (again, origin.how) == (first, FOUND)
    change(monkeypatch)
    monkeypatch.setattr(kl, "_KL_MEMOIZE", {})
    changed, origin, _ = called(function, cache)
    assert changed == pytest.approx(function(torch.tensor([1.0, -2.0])).tolist())
    assert changed != first
    assert origin.how != FOUND


by = 2.0


def helped(p, q):
    return p.loc * by


def test_what_a_registered_function_reads_is_seen(cache, monkeypatch):
    monkeypatch.setitem(kl._KL_REGISTRY, (Narrow, Narrow), helped)
    monkeypatch.setattr(kl, "_KL_MEMOIZE", {})
    assert called(divergence, cache)[0] == [2.0, -4.0]
    monkeypatch.setitem(globals(), "by", 3.0)
    assert called(divergence, cache)[0] == [3.0, -6.0]


started = time.time()
scale = 2.0
kinds = {"relu", "tanh", "sigmoid"}


def scaled(x):
    return torch.relu(x) * scale if "relu" in kinds else x


def test_what_no_executed_code_reads_does_not_matter(cache, monkeypatch):
    called(scaled, cache)
    monkeypatch.setitem(globals(), "started", time.time())
    assert called(scaled, cache)[1].how == FOUND


def test_a_set_that_is_only_asked_what_is_in_it_counts_in_any_order(cache, monkeypatch):
    called(scaled, cache)
    monkeypatch.setitem(globals(), "kinds", {"sigmoid", "relu", "tanh"})
    assert called(scaled, cache)[1].how == FOUND
    monkeypatch.setitem(globals(), "kinds", {"sigmoid", "tanh"})
    assert called(scaled, cache)[0] == [1.0, -2.0]


def test_a_miss_names_what_was_read(cache, monkeypatch):
    monkeypatch.setitem(kl._KL_REGISTRY, (Narrow, Narrow), a_kl)
    called(divergence, cache)
    monkeypatch.setitem(kl._KL_REGISTRY, (Narrow, Narrow), another_kl)
    assert "torch.distributions.kl" in str(fg.explain(called(divergence, cache)[2]))


@functools.lru_cache
def settings(name):
    return {"scale": scale}[name]


def scaled_by_settings(x):
    return x * settings("scale")


def test_a_result_that_a_function_keeps_is_seen(cache, monkeypatch):
    settings("scale")
    assert called(scaled_by_settings, cache)[0] == [2.0, -4.0]
    monkeypatch.setitem(globals(), "scale", 3.0)
    assert called(scaled_by_settings, cache)[0] == [2.0, -4.0]  # nobody has asked again
    settings.cache_clear()
    settings("scale")
    assert called(scaled_by_settings, cache)[0] == [3.0, -6.0]
    settings.cache_clear()


def test_results_that_a_capture_has_left_are_not_part_of_its_key(cache, monkeypatch):
    settings.cache_clear()
    assert called(scaled_by_settings, cache)[0] == [2.0, -4.0]
    settings.cache_clear()
    assert called(scaled_by_settings, cache)[1].how == FOUND
    monkeypatch.setitem(globals(), "scale", 3.0)
    assert called(scaled_by_settings, cache)[0] == [3.0, -6.0]
    settings.cache_clear()


def imports_inside(x):
    from tests.behaviours import changing_helper

    return x * changing_helper.SCALE


def test_a_module_that_is_imported_inside_is_seen(cache, monkeypatch):
    assert called(imports_inside, cache)[0] == [2.0, -4.0]
    assert called(imports_inside, cache)[1].how == FOUND
    monkeypatch.setattr(changing_helper, "SCALE", 3.0)
    assert called(imports_inside, cache)[0] == [3.0, -6.0]


activation = "relu"


def activated(x):
    return getattr(torch, activation)(x)


def test_code_that_computes_names_of_torch_starts_without_tracing(cache, monkeypatch):
    assert called(activated, cache)[0] == [1.0, 0.0]
    assert called(activated, cache)[1].how == FOUND
    monkeypatch.setitem(globals(), "activation", "abs")
    assert called(activated, cache)[0] == [1.0, 2.0]


packed = struct.Struct("f")


def unpacked(x):
    return x * packed.unpack(b"\0\0\0@")[0]


def test_an_object_with_state_in_c_makes_a_call_trace(cache):
    called(unpacked, cache)
    _, origin, compiled = called(unpacked, cache)
    assert origin.how != FOUND
    assert "packed" in str(origin)
    assert "packed" in str(fg.explain(compiled))


def numbers():
    yield from (2.0, 3.0)


upcoming = numbers()


def takes_the_next(x):
    return x * next(upcoming)


def test_an_object_whose_contents_cannot_be_told_is_named(cache):
    _, origin, _ = called(takes_the_next, cache)
    assert "upcoming" in str(origin)


def test_type_aliases_of_torch_are_compared():
    """Code that computes names of attributes (`getattr(F, name)`) can have read any of them."""
    prints = Fingerprints(frozenset())
    for name, value in vars(torch.autograd).items():
        prints.of(value, name)
    assert not prints.doubts


HIDDEN = {
    "an array": lambda k: array.array("l", [k]),
    "bytes that change": lambda k: bytearray([k]),
    "a number of C": ctypes.c_int,
    "numbers of C": lambda k: (ctypes.c_int * 2)(k, k),
    "a memory": lambda k: memoryview(bytes([k])),
    "a layout": lambda k: struct.Struct("i" * k),
    "a decimal context": lambda k: decimal.Context(prec=k),
    "a counter": itertools.count,
    "a source of random numbers": random.Random,
    "a date": lambda k: datetime.date(2000, 1, k),
}


@pytest.mark.parametrize("make", HIDDEN.values(), ids=list(HIDDEN))
def test_what_an_object_holds_in_c_is_compared_or_in_doubt(make):
    """Such an object may hang at a module of Python's, where a user has put it."""
    one, other = Fingerprints(frozenset()), Fingerprints(frozenset())
    assert one.of(make(3), "json.z") != other.of(make(4), "json.z") or (one.doubts and other.doubts)


def line():
    """A number that no key sees."""
    try:
        raise KeyError
    except KeyError as error:
        return error.__traceback__.tb_lineno


class ByMethod:
    def scale(self):
        return line()


HOLDERS = {
    "attribute of a logger": lambda patch: patch.setattr(logging.root, "scale_of_mine", line, raising=False),
    "method of an object": lambda patch: patch.setattr(logging.root, "scale_of_mine", ByMethod().scale, raising=False),
    "partial": lambda patch: patch.setattr(logging.root, "scale_of_mine", functools.partial(line), raising=False),
    "attribute of a module": lambda patch: patch.setattr(logging, "scale_of_mine", line, raising=False),
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_a_function_that_users_put_into_a_library_is_looked_at(holder, cache, monkeypatch):
    HOLDERS[holder](monkeypatch)
    home = logging if holder == "attribute of a module" else logging.root

    def scaled(x):
        return x * home.scale_of_mine()

    called(scaled, cache)
    assert called(scaled, cache)[1].how != FOUND
