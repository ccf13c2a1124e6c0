"""How a value is read when the function is called: in functions, methods, modules, callbacks of libraries."""

from __future__ import annotations

from tests.keep.stale.form import Form, Takes


def _reader(head: str, read: str = "$o(x)") -> Form:
    return Form(head, read, takes=Takes.VALUE)


READERS = {
    "function": _reader("def o$n(x):\n    return ($e)⟦¦ + 10⟧"),
    "lambda": _reader("o$n = lambda x: ($e)⟦¦ + 10⟧"),
    "nested function": _reader("def o$n(x):\n    def inner():\n        return ($e)⟦¦ + 10⟧\n    return inner()"),
    "method": _reader("class R$n:\n    def go(self, x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n()", "$o.go(x)"),
    "static method": _reader(
        "class R$n:\n    @staticmethod\n    def go(x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n()", "$o.go(x)"
    ),
    "class method": _reader(
        "class R$n:\n    @classmethod\n    def go(cls, x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n", "$o.go(x)"
    ),
    "inherited method": _reader(
        "class Q$n:\n    def go(self, x):\n        return self.k(x)\nclass R$n(Q$n):\n    def k(self, x):\n"
        "        return ($e)⟦¦ * 2⟧\no$n = R$n()",
        "$o.go(x)",
    ),
    "method by its name": _reader(
        "class R$n:\n    def k_a(self, x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n()\nname$n = ['a']",
        "getattr($o, 'k_' + 'a')(x)",
    ),
    "callable object": _reader("class R$n:\n    def __call__(self, x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n()"),
    "operator of an object": _reader(
        "class R$n:\n    def __matmul__(self, x):\n        return ($e)⟦¦ * 2⟧\no$n = R$n()", "($o @ x)"
    ),
    "module": _reader(
        "class R$n(torch.nn.Module):\n    def forward(self, x):\n        return x * ($e)⟦¦ * 2⟧\no$n = R$n()"
    ),
    "module in a sequence": _reader(
        "class R$n(torch.nn.Module):\n    def forward(self, x):\n        return x * ($e)⟦¦ * 2⟧\n"
        "o$n = torch.nn.Sequential(torch.nn.Identity(), R$n())"
    ),
    "forward hook": _reader(
        "o$n = torch.nn.Identity()\no$n.register_forward_hook(lambda m, a, r: r * (lambda x: $e)(a[0]))"
    ),
    "forward pre-hook": _reader(
        "o$n = torch.nn.Identity()\no$n.register_forward_pre_hook(lambda m, a: (a[0] * (lambda x: $e)(a[0]),))"
    ),
    "forward hook of an object": _reader(
        "class H$n:\n    def __call__(self, m, a, k, r):\n        x = a[0]\n        return r * ($e)⟦¦ * 2⟧\n"
        "o$n = torch.nn.Identity()\no$n.register_forward_hook(H$n(), with_kwargs=True⟦¦, always_call=True⟧)"
    ),
    "forward hook with a tensor": _reader(
        "import functools\ndef h$n(w, m, a, r):\n    x = a[0]\n    return r * w * ($e)⟦¦ * 2⟧\n"
        "o$n = torch.nn.Identity()\no$n.register_forward_hook(functools.partial(h$n, torch.ones(1)))"
    ),
    "forward hooks in an order": _reader(
        "o$n = torch.nn.Identity()\no$n.register_forward_hook(lambda m, a, r: r + (lambda x: $e)(a[0]))\n"
        "o$n.register_forward_hook(lambda m, a, r: r * 2, prepend=⟦True¦False⟧)"
    ),
    "hook of all modules of an object": _reader(
        "class H$n:\n    def go(self, m, a, r):\n        x = a[0]\n"
        "        return r * ($e)⟦¦ * 2⟧ if isinstance(m, torch.nn.ReLU6) else None\n"
        "o$n = torch.nn.ReLU6()\ntorch.nn.modules.module.register_module_forward_hook(H$n().go)"
    ),
    "forward of an instance": _reader("o$n = torch.nn.Identity()\no$n.forward = lambda x: x * ($e)⟦¦ * 2⟧"),
    "parametrization": _reader(
        "class Z$n(torch.nn.Module):\n    def forward(self, x):\n        return x * ($e)\no$n = torch.nn.Linear(3, 1, bias=False)\n"
        "torch.nn.init.ones_(o$n.weight)\n"
        "torch.nn.utils.parametrize.register_parametrization(o$n, 'weight', Z$n())"
    ),
    "autograd function": _reader(
        "class R$n(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, x):\n        return x * ($e)⟦¦ * 2⟧\n"
        "    @staticmethod\n    def backward(ctx, g):\n        return g\no$n = R$n",
        "$o.apply(x)",
    ),
    "checkpoint": _reader(
        "import torch.utils.checkpoint\ndef go$n(x):\n    return x * ($e)⟦¦ * 2⟧\n"
        "def o$n(x):\n    return torch.utils.checkpoint.checkpoint(go$n, x, use_reentrant=False)"
    ),
    "vmap": _reader("def o$n(x):\n    k = ($e)⟦¦ * 2⟧\n    return torch.func.vmap(lambda y: y * 2)(x) * k"),
    "gradient inside": _reader(
        "def o$n(x):\n    with torch.enable_grad():\n        y = x.detach().requires_grad_()\n"
        "        return torch.autograd.grad((y * ($e)⟦¦ * 2⟧).sum(), y)[0]"
    ),
    "hook of a gradient": _reader(
        "def o$n(x):\n    with torch.enable_grad():\n        y = x.detach().requires_grad_()\n        z = y * 1\n"
        "        z.register_hook(lambda g: g * ($e)⟦¦ * 2⟧)\n        return torch.autograd.grad(z.sum(), y)[0]"
    ),
    "subclass of Tensor": _reader(
        "class R$n:\n    @classmethod\n    def __torch_function__(cls, f, types, args=(), kwargs=None):\n        x = args[0]\n"
        "        return x * ($e)⟦¦ * 2⟧\nr$n = R$n()\ndef o$n(x):\n    return torch.add(x, r$n)"
    ),
    "function mode": _reader(
        "from torch.overrides import TorchFunctionMode\nclass R$n(TorchFunctionMode):\n"
        "    def __torch_function__(self, f, types, args=(), kwargs=None):\n"
        "        return f(*args, **(kwargs or {}))\ndef o$n(x):\n    with R$n():\n        return torch.relu(x) * ($e)⟦¦ * 2⟧"
    ),
    "generator": _reader("def go$n(x):\n    yield ($e)⟦¦ + 10⟧\ndef o$n(x):\n    return next(go$n(x))"),
    "coroutine": _reader(
        "async def go$n(x):\n    return ($e)⟦¦ + 10⟧\ndef o$n(x):\n    try:\n        go$n(x).send(None)\n"
        "    except StopIteration as done:\n        return done.value"
    ),
    "comprehension": _reader("def o$n(x):\n    return [($e)⟦¦ + 10⟧ for _ in range(2)][1]"),
    "map": _reader("def o$n(x):\n    return list(map(lambda _: ($e)⟦¦ + 10⟧, 'ab'))[0]"),
    "reduce": _reader("import functools\ndef o$n(x):\n    return functools.reduce(lambda a, b: ($e)⟦¦ + 10⟧, [1, 2])"),
    "sort": _reader(
        "def o$n(x):\n    found = []\n    sorted([1], key=lambda _: found.append(($e)⟦¦ + 10⟧) or 0)\n    return found[0]"
    ),
    "substitution": _reader(
        "import re\ndef o$n(x):\n    found = []\n    re.sub('a', lambda _: found.append(($e)⟦¦ + 10⟧) or '', 'a')\n    return found[0]"
    ),
    "JSON hook": _reader(
        "import json\ndef o$n(x):\n    return json.loads('{\"a\": 1}', object_hook=lambda _: ($e)⟦¦ + 10⟧)"
    ),
    "tree map": _reader(
        "import torch.utils._pytree as tree$n\ndef o$n(x):\n    return tree$n.tree_map(lambda _: ($e)⟦¦ + 10⟧, [1])[0]"
    ),
    "pytree node": _reader(
        "import torch.utils._pytree as tree$n\nclass N$n: ...\nx$n = []\n"
        "tree$n.register_pytree_node(N$n, lambda n: ([(lambda x: $e)(x$n[-1])], None), lambda c, _: c)\n"
        "def o$n(x):\n    x$n[:] = [x]\n    found = tree$n.tree_leaves(N$n())[0]\n    x$n.clear()\n    return found"
    ),
    "partial": _reader("import functools\ndef go$n(_, x):\n    return ($e)⟦¦ + 10⟧\no$n = functools.partial(go$n, 1)"),
    "wrapped": _reader(
        "import functools\ndef wrap$n(g):\n    @functools.wraps(g)\n    def inner(x):\n        return g(x)⟦¦ + 10⟧\n    return inner\n"
        "@wrap$n\ndef o$n(x):\n    return $e"
    ),
    "cached": _reader(
        "import functools\n@functools.lru_cache\ndef go$n(k):\n    return (lambda x: $e)(None)\n"
        "def o$n(x):\n    go$n.cache_clear()\n    return (lambda x: $e)(x)⟦¦ + 10⟧"
    ),
    "property": _reader(
        "class R$n:\n    def __init__(self, x):\n        self.x = x\n    @property\n    def k(self):\n        x = self.x\n"
        "        return ($e)⟦¦ + 10⟧\no$n = R$n",
        "$o(x).k",
    ),
    "context manager": _reader(
        "import contextlib\n@contextlib.contextmanager\ndef go$n(x):\n    yield ($e)⟦¦ + 10⟧\n"
        "def o$n(x):\n    with go$n(x) as k:\n        return k"
    ),
    "finally": _reader(
        "def o$n(x):\n    k = 0\n    try:\n        raise KeyError\n    except KeyError:\n        pass\n    finally:\n        k = ($e)⟦¦ + 10⟧\n    return k"
    ),
    "recursion": _reader("def o$n(x, depth=2):\n    return o$n(x, depth - 1) if depth else ($e)⟦¦ + 10⟧"),
    "class made inside": _reader("def o$n(x):\n    class K:\n        k = ($e)⟦¦ + 10⟧\n    return K.k"),
    "function by globals": _reader(
        "def go$n(x):\n    return ($e)⟦¦ + 10⟧\ndef o$n(x):\n    return globals()['go$n'](x)"
    ),
    "eval": _reader("def go$n(x):\n    return ($e)⟦¦ + 10⟧\ndef o$n(x):\n    return eval('go$n(x)')"),
    "vars of a class": _reader(
        "class R$n:\n    def k(self, x):\n        return ($e)⟦¦ + 10⟧\no$n = R$n()", "vars(type($o))['k']($o, x)"
    ),
    "method of a base, by super": _reader(
        "class Q$n:\n    def k(self, x):\n        return ($e)⟦¦ + 10⟧\nclass R$n(Q$n):\n    def k(self, x):\n        return super().k(x)\no$n = R$n()",
        "$o.k(x)",
    ),
    "deep copy": _reader(
        "import copy\nclass R$n:\n    def __deepcopy__(self, memo):\n        return 3⟦¦ + 10⟧\nr$n = R$n()\n"
        "def o$n(x):\n    return copy.deepcopy(r$n) * ($e)"
    ),
    "data class after init": _reader(
        "import dataclasses\n@dataclasses.dataclass\nclass R$n:\n    x: object\n    def __post_init__(self):\n        x = self.x\n"
        "        self.k = ($e)⟦¦ + 10⟧\no$n = R$n",
        "$o(x).k",
    ),
    "called by a library": _reader(
        "import fakelib\ndef go$n(x):\n    return ($e)⟦¦ + 10⟧\ndef o$n(x):\n    return fakelib.call(go$n, x)"
    ),
    "registered with a library": _reader(
        "import fakelib\n@fakelib.register('r$n')\ndef o$n(x):\n    return ($e)⟦¦ + 10⟧",
        "__import__('fakelib').find('r' + '$n')(x)",
    ),
    "custom op": _reader(
        "@torch.library.custom_op('stale::op$n', mutates_args=())\ndef o$n(x: torch.Tensor) -> torch.Tensor:\n    return x * ($e)⟦¦ * 2⟧\n"
        "@o$n.register_fake\ndef _(x):\n    return torch.empty_like(x)"
    ),
    "kernel in a namespace": Form(
        "lib$n = torch.library.Library('stale$n', 'DEF')\nlib$n.define('op(Tensor x) -> Tensor')\n"
        "def go$n(x):\n    return x * ($e)⟦¦ * 2⟧\nlib$n.impl('op', go$n, 'CompositeImplicitAutograd')\n"
        "def o$n(x):\n    return torch.ops.stale$n.op(x)",
        "$o(x)",
        takes=Takes.VALUE,
        is_flat=True,
    ),
}
