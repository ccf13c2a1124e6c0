"""Random functions and modules, the objects that they read, and random changes of these between calls.

    python -m tests.behaviours.random_changes --first 0 --count 2000

A world is a tree of containers, configs, classes, closures and modules with numbers and tensors as leaves; a function
reads some paths of it, directly, through helpers, closures, defaults or by computed names. Each change replaces a leaf,
a whole part, or something that nobody reads: the last must capture nothing anew.
"""

import argparse
import collections
import dataclasses
import functools
import random
import sys
import types

import numpy
import torch
from torch import nn

import foregrad as fg


class Plain:
    pass


class Slots:
    __slots__ = ("a", "b", "unread")


@dataclasses.dataclass
class Data:
    a: object = None
    b: object = None


class Property:
    def __init__(self, a, b):
        self._a, self.b = a, b

    @property
    def a(self):
        return self._a


class AsDict(dict):
    __getattr__ = dict.__getitem__
    __setattr__ = dict.__setitem__


class ByName:
    def __init__(self, **data):
        self._data = data

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return self._data[name]


Named = collections.namedtuple("Named", "a b")


def closure(a):
    return lambda: a


def with_default(a):
    def function(a=a):
        return a

    return function


def with_attribute(a):
    def function():
        return function.a

    function.a = a
    return function


def attributes(kind, a, b):
    made = kind()
    made.a, made.b = a, b
    return made


def set_closure(function, value):
    function.__closure__[0].cell_contents = value


#: How each kind is made of its children, how a child is read, and how it is set; None where it cannot be.
KINDS = {
    "list": (lambda a, b: [a, b], ("[0]", "[1]"), lambda o, i, v: o.__setitem__(i, v)),
    "tuple": (lambda a, b: (a, b), ("[0]", "[1]"), None),
    "named": (Named, (".a", ".b"), None),
    "deque": (lambda a, b: collections.deque([a, b]), ("[0]", "[1]"), lambda o, i, v: o.__setitem__(i, v)),
    "dict": (lambda a, b: {"a": a, "b": b}, ("['a']", "['b']"), lambda o, i, v: o.__setitem__("ab"[i], v)),
    "ordered": (
        lambda a, b: collections.OrderedDict(a=a, b=b),
        ("['a']", "['b']"),
        lambda o, i, v: o.__setitem__("ab"[i], v),
    ),
    "as dict": (lambda a, b: AsDict(a=a, b=b), (".a", "['b']"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "by name": (lambda a, b: ByName(a=a, b=b), (".a", ".b"), lambda o, i, v: o._data.__setitem__("ab"[i], v)),
    "namespace": (
        lambda a, b: types.SimpleNamespace(a=a, b=b),
        (".a", ".b"),
        lambda o, i, v: setattr(o, "ab"[i], v),
    ),
    "plain": (lambda a, b: attributes(Plain, a, b), (".a", ".b"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "slots": (lambda a, b: attributes(Slots, a, b), (".a", ".b"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "data": (Data, (".a", ".b"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "property": (Property, (".a", ".b"), lambda o, i, v: setattr(o, ("_a", "b")[i], v)),
    "class": (lambda a, b: type("Made", (), {"a": a, "b": b}), (".a", ".b"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "instance": (
        lambda a, b: type("Made", (), {"a": a, "b": b})(),
        (".a", ".b"),
        lambda o, i, v: setattr(type(o), "ab"[i], v),
    ),
    "module": (lambda a, b: attributes(nn.Module, a, b), (".a", ".b"), lambda o, i, v: setattr(o, "ab"[i], v)),
    "closure": (lambda a, b: closure(a), ("()",), lambda o, i, v: set_closure(o, v)),
    "default": (lambda a, b: with_default(a), ("()",), lambda o, i, v: setattr(o, "__defaults__", (v,))),
    "attribute": (lambda a, b: with_attribute(a), ("()",), lambda o, i, v: setattr(o, "a", v)),
    "partial": (
        lambda a, b: functools.partial(lambda a: a, a=a),
        ("()",),
        lambda o, i, v: o.keywords.__setitem__("a", v),
    ),
}

#: What can be given something that nobody reads.
UNREAD = {
    "list": None,
    "dict": None,
    "namespace": lambda o, v: setattr(o, "unread", v),
    "plain": lambda o, v: setattr(o, "unread", v),
    "slots": lambda o, v: setattr(o, "unread", v),
    "module": lambda o, v: setattr(o, "unread", v),
    "class": lambda o, v: setattr(o, "unread", v),
    "instance": lambda o, v: setattr(o, "unread", v),
}


def leaf(rng):
    kind = rng.randrange(7)
    if kind < 2:
        return torch.full((3,), float(rng.randrange(1, 9)))
    number = rng.randrange(0, 4)
    return [number, float(number), bool(number), numpy.float32(number), -0.0 * number][kind - 2]


class Part:
    """An object with its children; the shape of the tree depends on `seed` alone, the leaves on `rng`."""

    def __init__(self, seed, depth, rng):
        shape = random.Random(seed)
        self.seed, self.depth = seed, depth
        self.kind = shape.choice(list(KINDS)) if depth and shape.random() < 0.85 else None
        seeds = [shape.randrange(1 << 30) for _ in range(2)]
        if self.kind is None:
            self.children, self.value = [], leaf(rng)
        else:
            make, reads, self.set = KINDS[self.kind]
            self.children = [Part(one, depth - 1, rng) for one in seeds[: len(reads)]]
            self.value = make(*[c.value for c in self.children], *[None] * (2 - len(self.children)))

    def paths(self):
        if self.kind is None:
            return [""]
        reads = KINDS[self.kind][1]
        return [read + rest for read, child in zip(reads, self.children, strict=True) for rest in child.paths()]

    def change(self, rng):
        """Replace a leaf or a part somewhere below. Whether that could be done here."""
        if self.kind is None:
            return False
        for place in rng.sample(range(len(self.children)), len(self.children)):
            child = self.children[place]
            if child.kind is not None and rng.random() < 0.7 and child.change(rng):
                return True
            if self.set is not None:
                self.children[place] = Part(child.seed, child.depth, rng)
                self.set(self.value, place, self.children[place].value)
                return True
        return False

    def add_unread(self, rng):
        """Put something somewhere that nobody reads."""
        here = UNREAD.get(self.kind)
        below = [child for child in self.children if child.kind is not None]
        if here is not None and (not below or rng.random() < 0.5):
            here(self.value, [rng.random()])
            return True
        return bool(below) and rng.choice(below).add_unread(rng)


class World:
    """A module of Python's with variables, helpers and a function that reads them; or a module of torch's."""

    def __init__(self, seed):
        shape, self.rng = random.Random(seed), random.Random(seed + 1)
        self.name = f"world_{seed}"
        self.computes = False  # names of attributes: then all count
        module = types.ModuleType(self.name)
        sys.modules[self.name] = module
        self.roots = [Part(shape.randrange(1 << 30), 3, self.rng) for _ in range(2)]
        self.holder = shape.choice([vars(module), "self"])
        terms = [f"{{G}}{i}{path}" for i, root in enumerate(self.roots) for path in shape.sample(root.paths(), 1)]
        if self.holder == "self":
            lines = ["class Model(nn.Module):", "    def forward(self, x):"]
            lines += [f"        x = x * {t.format(G='self.r')} + 1" for t in terms] + ["        return x"]
            exec("\n".join(lines), vars(module) | {"nn": nn}, made := {})
            self.function = made["Model"]()
            for number, root in enumerate(self.roots):
                setattr(self.function, f"r{number}", root.value)
        else:
            texts = [t.format(G="R") for t in terms]
            if shape.random() < 0.3 and terms[0].endswith((".a", ".b")):
                self.computes = True
                texts[0] = f"getattr({texts[0][:-2]}, 'AB'[{int(texts[0].endswith('b'))}].lower())"
            lines = [f"def helper{i}(x): return x * {text} + 1" for i, text in enumerate(texts)]
            lines += ["def function(x): return helper1(helper0(x)), type(" + texts[0] + ").__name__"]
            for number, root in enumerate(self.roots):
                setattr(module, f"R{number}", root.value)
            exec("\n".join(lines), vars(module))
            self.function = module.function
        self.module = module

    def change(self):
        """One change; whether somebody may read it."""
        root = self.rng.randrange(2)
        part = self.roots[root]
        if self.rng.random() < 0.25 and part.add_unread(self.rng):
            return self.computes
        if self.rng.random() < 0.15 or not part.change(self.rng):
            self.roots[root] = part = Part(part.seed, part.depth, self.rng)
            owner, name = (self.function, f"r{root}") if self.holder == "self" else (self.module, f"R{root}")
            setattr(owner, name, part.value)
        return True

    def close(self):
        del sys.modules[self.name]


def results(seed, wrap, check_captures=False):
    world = World(seed)
    try:
        call = wrap(world.function)
        found = []
        for _ in range(4):
            x = torch.linspace(-1, 1, 3)
            found.append(call(x))
            before = len(fg.explain(call).captures) if check_captures else 0
            is_read = world.change()
            if check_captures and not is_read:
                call(x)
                assert len(fg.explain(call).captures) == before, f"seed {seed}: {fg.explain(call)}"
        return found
    finally:
        world.close()


def differs(seed):
    """How compiled and eager calls differ for a seed; None if they do not."""
    try:
        expected = results(seed, lambda f: f)
    except TypeError:  # such as a function that became a method of a class
        return None
    found = results(seed, lambda f: fg.compile(f, backend="eager", cache=False, dynamic=False), check_captures=True)
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        a, b = (v if isinstance(v, tuple) else (v, "") for v in (one, other))
        same = torch.equal(a[0].signbit(), b[0].signbit()) and torch.equal(a[0], b[0])
        if not same or a[0].dtype != b[0].dtype or a[1] != b[1]:
            return f"seed {seed}, call {number}: {a}, eager {b}"
    return None


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=2000)
    options = parser.parse_args()
    wrong = []
    for seed in range(options.first, options.first + options.count):
        try:
            found = differs(seed)
        except Exception as error:
            found = f"seed {seed}: {error!r}"
        if found:
            print(found[:400])
            wrong.append(seed)
    print(f"{options.count} worlds, {len(wrong)} differ: {wrong[:20]}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
