"""What holds a value: containers, objects, classes, closures, descriptors. Each may hold any other."""

from __future__ import annotations

from tests.keep.stale.form import Form

CONTAINERS = {
    "list": Form("o$n = [0, $e]", "$o[1]", "$o[1] = $e"),
    "tuple": Form("o$n = (0, $e)", "$o[1]"),
    "long list": Form("o$n = [0] * 300 + [$e]", "$o[300]", "$o[300] = $e"),
    "dict": Form("o$n = {'a': {'b': $e}}", "$o['a']['b']", "$o['a']['b'] = $e"),
    "dict by number": Form("o$n = {1: 0, (1, 2): $e}", "$o[1, 2]", "$o[1, 2] = $e"),
    "ordered dict": Form(
        "import collections\no$n = collections.OrderedDict(a=$e)", "next(iter($o.values()))", "$o['a'] = $e"
    ),
    "default dict": Form(
        "import collections\nd$n = $e\no$n = collections.defaultdict(lambda: d$n)",
        "$o['missing']",
        "$o['missing'] = $e",
    ),
    "chain map": Form("import collections\no$n = collections.ChainMap({}, {'a': $e})", "$o['a']", "$o['a'] = $e"),
    "mapping proxy": Form("import types\nm$n = {'a': $e}\no$n = types.MappingProxyType(m$n)", "$o['a']"),
    "user dict": Form("import collections\no$n = collections.UserDict(a=$e)", "$o['a']", "$o.data['a'] = $e"),
    "deque": Form("import collections\no$n = collections.deque([$e])", "$o[0]", "$o[0] = $e"),
    "array of objects": Form("import numpy as np\no$n = np.empty(2, dtype=object)\no$n[1] = $e", "$o[1]", "$o[1] = $e"),
    "namespace": Form("import types\no$n = types.SimpleNamespace(k=$e)", "$o.k", "$o.k = $e"),
    "argparse namespace": Form("import argparse\no$n = argparse.Namespace(k=$e)", "$o.k", "$o.k = $e"),
    "plain object": Form("class C$n: ...\no$n = C$n()\no$n.k = $e", "$o.k", "$o.k = $e"),
    "object by its dict": Form("class C$n: ...\no$n = C$n()\no$n.k = $e", "$o.__dict__['k']", "vars($o)['k'] = $e"),
    "slots": Form("class C$n:\n    __slots__ = ('k',)\no$n = C$n()\no$n.k = $e", "$o.k", "$o.k = $e"),
    "slots of a base": Form(
        "class B$n:\n    __slots__ = ('k',)\nclass C$n(B$n):\n    __slots__ = ('m',)\no$n = C$n()\no$n.k = $e",
        "$o.k",
        "$o.k = $e",
    ),
    "dataclass": Form(
        "import dataclasses\n@dataclasses.dataclass\nclass C$n:\n    k: object = None\no$n = C$n($e)",
        "$o.k",
        "$o.k = $e",
    ),
    "default of a dataclass": Form(
        "import dataclasses\nd$n = $e\n@dataclasses.dataclass\nclass C$n:\n"
        "    k: object = dataclasses.field(default_factory=lambda: d$n)\no$n = C$n",
        "$o().k",
    ),
    "frozen dataclass": Form(
        "import dataclasses\n@dataclasses.dataclass(frozen=True, slots=True)\nclass C$n:\n    k: object\no$n = C$n($e)",
        "$o.k",
        "object.__setattr__($o, 'k', $e)",
    ),
    "metadata of a field": Form(
        "import dataclasses\n@dataclasses.dataclass\nclass C$n:\n"
        "    k: int = dataclasses.field(default=1, metadata={'m': $e})\no$n = C$n",
        "__import__('dataclasses').fields($o)[0].metadata['m']",
    ),
    "named tuple": Form("import collections\nT$n = collections.namedtuple('T$n', 'k')\no$n = T$n($e)", "$o.k"),
    "typed named tuple": Form(
        "import typing\nclass T$n(typing.NamedTuple):\n    k: object = None\no$n = T$n($e)", "$o.k"
    ),
    "default of a named tuple": Form(
        "import collections\no$n = collections.namedtuple('T$n', 'k', defaults=[$e])", "$o().k"
    ),
    "enum": Form("import enum\nv$n = $e\nclass E$n(enum.Enum):\n    A = (v$n,)\no$n = E$n", "$o.A.value[0]"),
    "enum member": Form(
        "import enum\nv$n = $e\nclass E$n(enum.Enum):\n    A = 1\n    @property\n    def k(self):\n"
        "        return v$n\no$n = E$n.A",
        "$o.k",
    ),
    "class attribute": Form("class C$n:\n    k = [$e]\no$n = C$n", "$o.k[0]", "$o.k = [$e]"),
    "inherited": Form(
        "class B$n:\n    k = [$e]\nclass C$n(B$n): ...\no$n = C$n()", "$o.k[0]", "type($o).__mro__[1].k = [$e]"
    ),
    "class in a class": Form("class C$n:\n    class D:\n        k = [$e]\no$n = C$n()", "$o.D.k[0]", "$o.D.k = [$e]"),
    "metaclass": Form(
        "class M$n(type):\n    k = [$e]\nclass C$n(metaclass=M$n): ...\no$n = C$n", "$o.k[0]", "type($o).k = [$e]"
    ),
    "getattr of a metaclass": Form(
        "v$n = {'k': $e}\nclass M$n(type):\n    def __getattr__(cls, name):\n        return v$n[name]\n"
        "class C$n(metaclass=M$n): ...\no$n = C$n",
        "$o.k",
    ),
    "getattr": Form(
        "class C$n:\n    def __init__(self, k):\n        self.kept = {'k': k}\n    def __getattr__(self, name):\n"
        "        return self.kept[name]\no$n = C$n($e)",
        "$o.k",
        "$o.kept['k'] = $e",
    ),
    "getattribute": Form(
        "v$n = [$e]\nclass C$n:\n    def __getattribute__(self, name):\n        return v$n[0]\no$n = C$n()", "$o.k"
    ),
    "getitem": Form(
        "class C$n:\n    def __init__(self, k):\n        self.k = k\n    def __getitem__(self, index):\n"
        "        return self.k\no$n = C$n($e)",
        "$o[0]",
        "$o.k = $e",
    ),
    "class getitem": Form(
        "v$n = [$e]\nclass C$n:\n    def __class_getitem__(cls, index):\n        return v$n[0]\no$n = C$n", "$o[0]"
    ),
    "missing": Form(
        "v$n = [$e]\nclass C$n(dict):\n    def __missing__(self, key):\n        return v$n[0]\no$n = C$n()", "$o['q']"
    ),
    "attribute of a dict subclass": Form("class C$n(dict): ...\no$n = C$n()\no$n.k = $e", "$o.k", "$o.k = $e"),
    "attribute of a list subclass": Form("class C$n(list): ...\no$n = C$n([1])\no$n.k = $e", "$o.k", "$o.k = $e"),
    "attribute of an int subclass": Form("class C$n(int): ...\no$n = C$n(1)\no$n.k = $e", "$o.k", "$o.k = $e"),
    "attribute of a string subclass": Form("class C$n(str): ...\no$n = C$n('a')\no$n.k = $e", "$o.k", "$o.k = $e"),
    "callable object": Form(
        "class C$n:\n    def __init__(self, k):\n        self.k = k\n    def __call__(self):\n        return self.k\n"
        "o$n = C$n($e)",
        "$o()",
        "$o.k = $e",
    ),
    "iterable": Form(
        "class C$n:\n    def __init__(self, k):\n        self.k = k\n    def __iter__(self):\n        yield self.k\n"
        "o$n = C$n($e)",
        "next(iter($o))",
        "$o.k = $e",
    ),
    "mapping behind stars": Form(
        "v$n = [$e]\nclass C$n:\n    def keys(self):\n        return ['k']\n    def __getitem__(self, key):\n"
        "        return v$n[0]\no$n = C$n()",
        "dict(**$o)['k']",
    ),
    "descriptor": Form(
        "class D$n:\n    def __init__(self, k):\n        self.k = k\n    def __get__(self, one, kind):\n"
        "        return self.k\nclass C$n:\n    d = D$n($e)\no$n = C$n()",
        "$o.d",
        "type($o).__dict__['d'].k = $e",
    ),
    "set name": Form(
        "v$n = [$e]\nclass D$n:\n    def __set_name__(self, owner, name):\n        owner.found = v$n[0]\n"
        "class C$n:\n    d = D$n()\no$n = C$n",
        "$o.found",
        "$o.found = $e",
    ),
    "init subclass": Form(
        "class B$n:\n    def __init_subclass__(cls, k):\n        cls.k = [k]\nclass C$n(B$n, k=$e): ...\no$n = C$n()",
        "$o.k[0]",
        "type($o).k = [$e]",
    ),
    "property": Form(
        "v$n = [$e]\nclass C$n:\n    @property\n    def k(self):\n        return v$n[0]\no$n = C$n()", "$o.k"
    ),
    "cached property": Form(
        "import functools\nv$n = [$e]\nclass C$n:\n    @functools.cached_property\n    def k(self):\n"
        "        return v$n[0]\no$n = C$n()",
        "$o.k",
    ),
    "class method": Form(
        "class C$n:\n    kept = [$e]\n    @classmethod\n    def k(cls):\n        return cls.kept[0]\no$n = C$n",
        "$o.k()",
        "$o.kept = [$e]",
    ),
    "bound method": Form(
        "class C$n:\n    def __init__(self, k):\n        self.k = k\n    def get(self):\n        return self.k\n"
        "o$n = C$n($e).get",
        "$o()",
        "$o.__self__.k = $e",
    ),
    "super": Form(
        "v$n = [$e]\nclass A$n:\n    def k(self):\n        return 1\nclass B$n(A$n):\n    def k(self):\n"
        "        return v$n[0]\nclass C$n(B$n, A$n):\n    def k(self):\n        return super().k()\no$n = C$n()",
        "$o.k()",
    ),
    "closure": Form(
        "def outer$n(k):\n    def inner():\n        return k\n    return inner\no$n = outer$n($e)",
        "$o()",
        "$o.__closure__[0].cell_contents = $e",
    ),
    "closure of a wrapper": Form(
        "import functools\ndef wrap$n(k):\n    def decorate(g):\n        @functools.wraps(g)\n        def inner():\n"
        "            return k\n        return inner\n    return decorate\n@wrap$n($e)\ndef o$n():\n    return 1",
        "$o()",
        "$o.__closure__[0].cell_contents = $e",
    ),
    "default": Form("def o$n(k=[$e]):\n    return k[0]", "$o()", "$o.__defaults__ = ([$e],)"),
    "keyword default": Form("def o$n(*, k=[$e]):\n    return k[0]", "$o()", "$o.__kwdefaults__['k'] = [$e]"),
    "attribute of a function": Form("def o$n():\n    return o$n.k\no$n.k = $e", "$o()", "$o.k = $e"),
    "lambda in a dict": Form("v$n = [$e]\no$n = {'g': lambda: v$n[0]}", "$o['g']()", "$o['g'] = lambda: $e"),
    "partial": Form("import functools\no$n = functools.partial(lambda k: k, $e)", "$o()"),
    "keyword of a partial": Form(
        "import functools\no$n = functools.partial(lambda k=0: k, k=$e)", "$o()", "$o.keywords['k'] = $e"
    ),
    "attribute of a partial": Form("import functools\no$n = functools.partial(int)\no$n.k = $e", "$o.k", "$o.k = $e"),
    "lru cache": Form("import functools\nv$n = [$e]\n@functools.lru_cache\ndef o$n():\n    return v$n[0]", "$o()"),
    "result in a lru cache": Form(
        "import functools\nv$n = [$e]\n@functools.lru_cache\ndef o$n():\n    return v$n[0]\no$n()\nv$n[0] = 0", "$o()"
    ),
    "attribute of a lru cache": Form(
        "import functools\n@functools.lru_cache\ndef o$n():\n    return 1\no$n.k = $e", "$o.k", "$o.k = $e"
    ),
    "single dispatch": Form(
        "import functools\nv$n = [$e]\n@functools.singledispatch\ndef o$n(k):\n    return 0\n@o$n.register\n"
        "def _(k: int):\n    return v$n[0]",
        "$o(1)",
        "$o.register(int, lambda k: $e)",
    ),
    "registry": Form(
        "o$n = {}\nv$n = [$e]\ndef add$n(g):\n    o$n[g.__name__] = g\n    return g\n@add$n\ndef a():\n"
        "    return v$n[0]\n@add$n\ndef b():\n    return 0",
        "$o['a']()",
        "$o['a'] = lambda: $e",
    ),
    "context manager": Form(
        "import contextlib\nv$n = [$e]\n@contextlib.contextmanager\ndef c$n():\n    yield v$n[0]\n"
        "def o$n():\n    with c$n() as k:\n        return k",
        "$o()",
    ),
    "generator": Form("v$n = [$e]\ndef o$n():\n    yield v$n[0]", "next($o())"),
    "repeated iterator": Form("import itertools\no$n = itertools.repeat($e)", "next($o)"),
    "getter": Form(
        "import operator, types\nv$n = types.SimpleNamespace(k=$e)\ng$n = operator.attrgetter('k')\n"
        "def o$n():\n    return g$n(v$n)",
        "$o()",
    ),
    "exception": Form("o$n = ValueError($e)", "$o.args[0]", "$o.args = ($e,)"),
    "attribute of an exception": Form("o$n = ValueError(1)\no$n.k = $e", "$o.k", "$o.k = $e"),
    "module of types": Form("import types\no$n = types.ModuleType('m$n')\no$n.k = $e", "$o.k", "$o.k = $e"),
    "module in sys.modules": Form(
        "import sys, types\nsys.modules['made$n'] = types.ModuleType('made$n')\nimport made$n\nmade$n.k = $e\n"
        "def o$n():\n    import made$n\n    return made$n.k",
        "$o()",
        "import sys\nsys.modules['made$n'].k = $e",
    ),
    "getattr of a module": Form(
        "import types\nv$n = [$e]\no$n = types.ModuleType('m$n')\no$n.__getattr__ = lambda name: v$n[0]", "$o.k"
    ),
    "weak reference": Form(
        "import weakref\nclass C$n: ...\nkept$n = C$n()\nkept$n.k = $e\no$n = weakref.ref(kept$n)",
        "$o().k",
        "$o().k = $e",
        is_flat=True,
    ),
    "weak dict": Form(
        "import weakref\nclass C$n: ...\nkept$n = C$n()\no$n = weakref.WeakKeyDictionary({kept$n: $e})",
        "next(iter($o.values()))",
        is_flat=True,
    ),
    "thread's own object": Form("import threading\no$n = threading.local()\no$n.k = $e", "$o.k", "$o.k = $e"),
    "context variable of an object": Form(
        "import contextvars\no$n = contextvars.ContextVar('o$n', default=[$e])", "$o.get()[0]", "$o.set([$e])"
    ),
    "attribute of a module": Form(
        "class N$n(torch.nn.Module):\n    def __init__(self, k):\n        super().__init__()\n        self.k = k\n"
        "o$n = N$n($e)",
        "$o.k",
        "$o.k = $e",
    ),
    "attribute of a child": Form(
        "o$n = torch.nn.Sequential(torch.nn.Identity())\no$n[0].k = [$e]", "$o[0].k[0]", "$o[0].k = [$e]"
    ),
    "attribute of an optimizer": Form(
        "o$n = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)\no$n.k = [$e]", "$o.k[0]", "$o.k = [$e]"
    ),
    "attribute of a tensor": Form("o$n = torch.ones(1)\no$n.k = [$e]", "$o.k[0]", "$o.k = [$e]"),
    "attribute of a parameter": Form("o$n = torch.nn.Parameter(torch.ones(1))\no$n.k = [$e]", "$o.k[0]", "$o.k = [$e]"),
    "annotated": Form("import typing\nv$n = $e\no$n = typing.Annotated[int, [v$n]]", "$o.__metadata__[0][0]"),
    "class from Any": Form(
        "import typing\nclass C$n(typing.Any):\n    k = [$e]\no$n = C$n()", "$o.k[0]", "type($o).k = [$e]"
    ),
    "generic class": Form(
        "import typing\nT$n = typing.TypeVar('T$n')\nclass C$n(typing.Generic[T$n]):\n    k = [$e]\no$n = C$n[int]",
        "$o.k[0]",
    ),
    "protocol": Form(
        "import typing\nclass P$n(typing.Protocol):\n    k = [$e]\nclass C$n(P$n): ...\no$n = C$n()", "$o.k[0]"
    ),
    "abstract base": Form(
        "import abc\nv$n = [$e]\nclass B$n(abc.ABC):\n    @property\n    @abc.abstractmethod\n    def k(self): ...\n"
        "class C$n(B$n):\n    k = v$n\no$n = C$n()",
        "$o.k[0]",
    ),
    "cycle": Form("o$n = {'k': $e}\no$n['me'] = [o$n]", "$o['me'][0]['me'][0]['k']", "$o['k'] = $e"),
    "two of one name": Form(
        "def make$n(k):\n    class Same:\n        kept = [k]\n    return Same\none$n, o$n = make$n(1), make$n($e)",
        "$o.kept[0]",
        "$o.kept = [$e]",
    ),
    "two functions of one name": Form(
        "def make$n(k):\n    def same():\n        return k\n    return same\none$n, two$n = make$n(1), make$n($e)\n"
        "def o$n():\n    one$n()\n    return two$n()",
        "$o()",
    ),
}
