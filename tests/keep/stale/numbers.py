"""What holds a number or is made from one, and edits of code: bodies, decorators, bases, orders, defaults, types."""

from __future__ import annotations

from tests.keep.stale.form import Form, Takes


def _number(head: str, read: str = "$o", change: str = "") -> Form:
    return Form(head, read, change, Takes.NUMBER)


NUMBERS = {
    # data
    "array": _number("import numpy as np\no$n = np.array([1, $e])", "int($o[1])", "$o[1] = $e"),
    "long array": _number(
        "import numpy as np\no$n = np.zeros(5000, int)\no$n[3000] = $e", "int($o[3000])", "$o[3000] = $e"
    ),
    "structured array": _number(
        "import numpy as np\no$n = np.zeros(2, dtype=[('a', int), ('b', int)])\no$n['b'][1] = $e",
        "int($o['b'][1])",
        "$o['b'][1] = $e",
    ),
    "view of an array": _number(
        "import numpy as np\nbase$n = np.zeros(4, int)\no$n = base$n[1:3]\nbase$n[2] = $e",
        "int($o[1])",
        "$o.base[2] = $e",
    ),
    "fill value of a masked array": _number(
        "import numpy as np\no$n = np.ma.masked_array([1, 2], fill_value=$e)",
        "int($o.fill_value)",
        "$o.fill_value = $e",
    ),
    "mask": _number(
        "import numpy as np\no$n = np.ma.masked_array(np.arange(40) + 1, mask=[i == $e for i in range(40)])",
        "int($o.sum())",
    ),
    "scalar of NumPy": _number("import numpy as np\no$n = np.int64($e)", "int($o)"),
    "dtype of NumPy": _number("import numpy as np\no$n = np.dtype((np.int8, ($e,)))", "$o.itemsize"),
    "memory view": _number("b$n = bytearray([1, $e])\no$n = memoryview(b$n)", "$o[1]", "$o[1] = $e"),
    "bytes": _number("o$n = bytes([1, $e])", "$o[1]"),
    "byte array": _number("o$n = bytearray([1, $e])", "$o[1]", "$o[1] = $e"),
    "array of the standard library": _number("import array\no$n = array.array('l', [1, $e])", "$o[1]", "$o[1] = $e"),
    "ctypes": _number("import ctypes\no$n = ctypes.c_int($e)", "$o.value", "$o.value = $e"),
    "struct": _number("import struct\no$n = struct.Struct('i' * $e)", "$o.size"),
    "set": _number("o$n = {1000, $e}", "min($o)", "$o.clear(); $o.update([1000, $e])"),
    "frozen set": _number("o$n = frozenset([1000, $e])", "min($o)"),
    "set of strings in its order": _number("o$n = {f'a{i}' for i in range($e)}", "sum(map(len, list($o)))"),
    "counter": _number("import collections\no$n = collections.Counter('a' * $e)", "$o['a']", "$o['a'] = $e"),
    "range": _number("o$n = range($e, 100)", "$o[0]"),
    "slice": _number("o$n = slice($e)", "$o.stop"),
    "complex": _number("o$n = complex(1, $e)", "$o.imag"),
    "fraction": _number("import fractions\no$n = fractions.Fraction($e, 7)", "$o.numerator"),
    "decimal": _number("import decimal\no$n = decimal.Decimal($e)", "int($o)"),
    "time delta": _number("import datetime\no$n = datetime.timedelta(days=$e)", "$o.days"),
    "date": _number("import datetime\no$n = datetime.date(2000, 1, $e % 28 + 1)", "$o.day"),
    "uuid": _number("import uuid\no$n = uuid.UUID(int=$e)", "$o.int"),
    "path": _number("import pathlib\no$n = pathlib.Path('a' * $e)", "len($o.name)"),
    "long text": _number("o$n = 'a' * 5000 + 'b' * $e", "len($o)"),
    "pattern": _number("import re\no$n = re.compile('a' * 300 + 'b' * $e)", "len($o.pattern)"),
    "pattern that matches": _number(
        "import re\np$n = re.compile('a' * 300 + 'b{%d}' % $e)\ndef o$n():\n"
        "    return 2 + sum(p$n.fullmatch('a' * 300 + 'b' * k) is not None for k in range(8))",
        "$o()",
    ),
    "template": _number("import string\no$n = string.Template('$$k ' + 'a' * $e)", "len($o.substitute(k=1))"),
    "float": _number("o$n = float($e)", "$o"),
    "int or float": _number("o$n = ⟦1¦1.5⟧ * $e"),
    "negative zero": _number("import math\no$n = ⟦0.0¦-0.0⟧\nk$n = $e", "(__import__('math').copysign(1, $o) + 2)"),
    "true or one": _number("o$n = {'k': ⟦True¦1⟧}\nk$n = $e", "len(type($o['k']).__name__)"),
    "size of torch": _number("o$n = torch.Size([1, $e])", "$o[1]"),
    "device": _number("o$n = torch.device('meta', $e)", "$o.index"),
    "dtype": _number("o$n = [torch.float⟦32¦64⟧]\nk$n = $e", "$o[0].itemsize", "$o[0] = torch.int8"),
    "queue": _number("import queue\no$n = queue.Queue()\no$n.put($e)", "$o.queue[0]", "$o.queue[0] = $e"),
    "text in memory": _number("import io\no$n = io.StringIO(str($e))", "int($o.getvalue())"),
    "iterator": _number("o$n = iter([$e] * 100)", "next($o)"),
    "count": _number("import itertools\no$n = itertools.count($e)", "next($o) * 0 + 3"),
    "random object": _number("import random\no$n = random.Random($e)", "$o.getstate()[1][0] % 1000"),
    "semaphore": _number("import threading\no$n = threading.Semaphore($e)", "$o._value"),
    "logger of its own": _number("import logging\no$n = logging.Logger('a', level=$e)", "$o.level", "$o.level = $e"),
    "constant tensor": _number("o$n = torch.tensor([1, $e])", "int($o[1])", "$o[1] = $e"),
    "storage": _number("o$n = torch.tensor([1, int($e)]).untyped_storage()", "$o[8]"),
    # types
    "literal type": _number("import typing\no$n = typing.Literal[$e, 'a']", "$o.__args__[0]"),
    "generic alias": _number(
        "import typing\no$n = dict[str, tuple[tuple([int] * $e)]]", "len($o.__args__[1].__args__)"
    ),
    "original bases": _number(
        "import typing\nT$n = typing.TypeVar('T$n')\nclass B$n(typing.Generic[T$n]): ...\nv$n = $e\n"
        "class C$n(B$n[typing.Literal[v$n]]): ...\no$n = C$n",
        "$o.__orig_bases__[0].__args__[0].__args__[0]",
    ),
    "bound of a type variable": _number(
        "import typing\nv$n = $e\no$n = typing.TypeVar('T$n', bound=typing.Literal[v$n])", "$o.__bound__.__args__[0]"
    ),
    "type of a field": _number(
        "import dataclasses\n@dataclasses.dataclass\nclass C$n:\n    k: ⟦int¦float⟧ = 1\nv$n = $e\no$n = C$n",
        "len(__import__('dataclasses').fields($o)[0].type.__name__)",
    ),
    "annotations of a class": _number(
        "class C$n:\n    a: int\n⟦¦    b: int\n⟧v$n = $e\no$n = C$n", "1 + len($o.__annotations__)"
    ),
    "fields of a dataclass": _number(
        "import dataclasses\n@dataclasses.dataclass\nclass C$n:\n    a: int = 1\n⟦¦    b: int = 2\n⟧v$n = $e\no$n = C$n()",
        "sum(__import__('dataclasses').asdict($o).values())",
    ),
    "slots by name": _number(
        "class C$n:\n    __slots__ = ('a'⟦,¦, 'b'⟧)\nv$n = $e\no$n = C$n", "1 + len($o.__slots__)"
    ),
    # edits of code
    "body": _number("v$n = $e\ndef o$n():\n    return v$n⟦¦ + 10⟧", "$o()"),
    "operator": _number("v$n = $e\ndef o$n():\n    return v$n ⟦+¦-⟧ 30", "$o()"),
    "condition": _number("v$n = $e\ndef o$n():\n    return v$n if len('abc') ⟦<¦>⟧ 2 else 50", "$o()"),
    "called name": _number("v$n = $e\ndef o$n():\n    return ⟦min¦max⟧(v$n, 60)", "$o()"),
    "attribute name": _number("class C$n:\n    a, b = $e, 70\ndef o$n():\n    return C$n.⟦a¦b⟧", "$o()"),
    "decorator": _number(
        "v$n = $e\ndef one$n(g):\n    return lambda: g() + 1\ndef two$n(g):\n    return lambda: g() + 2\n"
        "@⟦one¦two⟧$n\ndef o$n():\n    return v$n",
        "$o()",
    ),
    "decorator with an argument": _number(
        "v$n = $e\ndef times$n(k):\n    def wrap(g):\n        return lambda: g() * k\n    return wrap\n"
        "@times$n(⟦2¦5⟧)\ndef o$n():\n    return v$n",
        "$o()",
    ),
    "order of decorators": _number(
        "v$n = $e\ndef one$n(g):\n    return lambda: g() + 1\ndef two$n(g):\n    return lambda: g() * 2\n"
        "@⟦one$n¦two$n⟧\n@two$n\n@one$n\ndef o$n():\n    return v$n",
        "$o()",
    ),
    "base class": _number(
        "class A$n:\n    k = $e\nclass B$n:\n    k = 80\nclass C$n(⟦A¦B⟧$n): ...\no$n = C$n()", "$o.k"
    ),
    "order of bases": _number(
        "class A$n:\n    k = $e\nclass B$n:\n    k = 80\nclass C$n(⟦A$n, B$n¦B$n, A$n⟧): ...\no$n = C$n()", "$o.k"
    ),
    "method of a mixin": _number(
        "v$n = $e\nclass M$n:\n    def k(self):\n        return super().k() ⟦+¦*⟧ 7\nclass A$n:\n    def k(self):\n"
        "        return v$n\nclass C$n(M$n, A$n): ...\no$n = C$n()",
        "$o.k()",
    ),
    "metaclass body": _number(
        "v$n = $e\nclass M$n(type):\n    def __new__(m, name, bases, space):\n        space['k'] = v$n⟦¦ + 10⟧\n"
        "        return super().__new__(m, name, bases, space)\nclass C$n(metaclass=M$n): ...\no$n = C$n",
        "$o.k",
    ),
    "class decorator": _number(
        "v$n = $e\ndef mark$n(cls):\n    cls.k = v$n⟦¦ + 10⟧\n    return cls\n@mark$n\nclass C$n: ...\no$n = C$n()",
        "$o.k",
    ),
    "order of a list": _number("o$n = [⟦$e, 90¦90, $e⟧]", "$o[0]"),
    "order of a dict": _number("o$n = {⟦'a': $e, 'b': 90¦'b': 90, 'a': $e⟧}", "next(iter($o.values()))"),
    "order of registrations": _number(
        "o$n = {}\nv$n = $e\n⟦o$n['a'] = v$n\no$n['b'] = 90¦o$n['b'] = 90\no$n['a'] = v$n⟧", "list($o.values())[-1]"
    ),
    "order of enum members": _number(
        "import enum\nclass E$n(enum.IntEnum):\n    ⟦A = $e\n    B = 90¦B = 90\n    A = $e⟧\no$n = E$n",
        "int(list($o)[0])",
    ),
    "flags": _number("import enum\nclass E$n(enum.IntFlag):\n    A = $e\n    B = 64\no$n = E$n.A | E$n.B", "int($o)"),
    "value of a default": _number("v$n = $e\ndef o$n(k=⟦1¦9⟧, *, m=⟦2¦8⟧):\n    return v$n + k * m", "$o()"),
    "order of parameters": _number(
        "v$n = $e\ndef g$n(⟦a, b¦b, a⟧):\n    return a - 2 * b + v$n\no$n = g$n", "$o(10, 3)"
    ),
    "local variable": _number("v$n = $e\ndef o$n():\n    a, b = 5, 6\n    return ⟦a¦b⟧ * v$n", "$o()"),
    "comprehension": _number("v$n = $e\ndef o$n():\n    return sum(k for k in range(9) if k ⟦<¦>⟧ 4) + v$n", "$o()"),
    "match": _number(
        "v$n = $e\nclass P$n:\n    __match_args__ = ('⟦a¦b⟧',)\n    a, b = 2, 3\ndef o$n():\n    match P$n():\n"
        "        case P$n(k):\n            return k * v$n",
        "$o()",
    ),
    "length": _number(
        "v$n = $e\nclass C$n:\n    def __len__(self):\n        return v$n⟦¦ + 10⟧\no$n = C$n()", "len($o)"
    ),
    "index": _number(
        "v$n = $e\nclass C$n:\n    def __index__(self):\n        return v$n⟦¦ + 10⟧\no$n = C$n()", "range(999)[$o]"
    ),
    "format": _number(
        "v$n = $e\nclass C$n:\n    def __format__(self, spec):\n        return str(v$n⟦¦ + 10⟧)\no$n = C$n()",
        "int(f'{$o}')",
    ),
    "truth": _number(
        "v$n = $e\nclass C$n:\n    def __bool__(self):\n        return v$n ⟦>¦<⟧ 0\no$n = C$n()", "(4 if $o else 5)"
    ),
    "equality": _number(
        "v$n = $e\nclass C$n:\n    def __eq__(self, other):\n        return v$n ⟦>¦<⟧ 0\n    __hash__ = None\no$n = C$n()",
        "(4 if $o == 1 else 5)",
    ),
    "hash": _number(
        "v$n = $e\nclass C$n:\n    def __hash__(self):\n        return v$n⟦¦ + 10⟧\no$n = C$n()", "hash($o)"
    ),
    "contains": _number(
        "v$n = $e\nclass C$n:\n    def __contains__(self, k):\n        return v$n ⟦>¦<⟧ 0\no$n = C$n()",
        "(4 if 1 in $o else 5)",
    ),
    "reflected operator": _number(
        "v$n = $e\nclass C$n:\n    def __radd__(self, k):\n        return k + v$n⟦¦ + 10⟧\no$n = C$n()", "(1 + $o)"
    ),
    "instance check": _number(
        "v$n = $e\nclass M$n(type):\n    def __instancecheck__(cls, k):\n        return v$n ⟦>¦<⟧ 0\n"
        "class C$n(metaclass=M$n): ...\no$n = C$n",
        "(4 if isinstance(1, $o) else 5)",
    ),
    "virtual subclass": _number(
        "import abc\nclass B$n(abc.ABC): ...\nclass C$n: ...\nclass D$n: ...\nv$n = $e\nB$n.register(⟦C¦D⟧$n)\no$n = (B$n, C$n)",
        "(4 if issubclass($o[1], $o[0]) else 5)",
        "$o[0].register($o[1])",
    ),
    "virtual number": _number(
        "import numbers\nclass C$n: ...\nv$n = $e\n⟦pass¦numbers.Number.register(C$n)⟧\no$n = C$n()",
        "(4 if isinstance($o, __import__('numbers').Number) else 5)",
        "__import__('numbers').Number.register(type($o))",
    ),
    "subclass hook": _number(
        "import abc\nv$n = $e\nclass B$n(abc.ABC):\n    @classmethod\n    def __subclasshook__(cls, k):\n"
        "        return v$n ⟦>¦<⟧ 0\no$n = B$n",
        "(4 if issubclass(int, $o) else 5)",
    ),
    "subclasses": _number(
        "class B$n: ...\nclass C$n(B$n): ...\n⟦pass¦class D$n(B$n): ...⟧\nv$n = $e\no$n = B$n\n"
        "B$n.alive = B$n.__subclasses__()",
        "len($o.__subclasses__())",
    ),
    "copier": _number(
        "import copyreg\nclass C$n:\n    k = 1\nv$n = $e\ndef again$n(k):\n    made = C$n()\n    made.k = k\n    return made\n"
        "copyreg.pickle(C$n, lambda one: (again$n, (v$n,)))\no$n = C$n()",
        "__import__('copy').copy($o).k",
    ),
    "sort key": _number(
        "v$n = $e\ndef key$n(k):\n    return ⟦k¦-k⟧\ndef o$n():\n    return sorted([v$n, 99], key=key$n)[0]", "$o()"
    ),
    "overlapping names": _number(
        "class A$n:\n    class K:\n        k = $e\nclass B$n:\n    class K:\n        k = ⟦3¦4⟧\n"
        "B$n.K.__qualname__ = A$n.K.__qualname__\no$n = (A$n.K, B$n.K)",
        "($o[0].k + 2 * $o[1].k)",
    ),
}
