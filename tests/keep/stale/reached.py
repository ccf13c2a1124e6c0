"""What users put deep into libraries, and settings of torch: the libraries' own code reads it."""

from __future__ import annotations

from tests.keep.stale.form import Form, Takes


def _reached(statement: str, read: str, *, both: bool = True, head: str = "") -> Form:
    """A statement that changes a library when it is imported, and in a running process."""
    change = statement.replace("r$n.", "$o.") if both else ""
    return Form(f"import fakelib.reach as r$n\n{head}{statement}\no$n = r$n", read, change, Takes.NUMBER, is_flat=True)


def _torch(statement: str, read: str, head: str = "", change: str = "") -> Form:
    return Form(f"{head}{statement}\no$n = torch", read, change, Takes.NUMBER, is_flat=True)


_FAKELIB = {
    "end of a chain of slots": _reached("r$n.CHAIN.last().k = $e", "$o.chained(x)"),
    "deep in a dict": _reached("r$n.DEEP['a']['a']['a']['a']['a']['a']['a']['a']['k'] = $e", "$o.deep(x)"),
    "subclasses": _reached("made$n = [type('Sub', (r$n.Base,), {}) for _ in range($e)]", "$o.sized(x)", both=False),
    "method of a subclass": _reached(
        "v$n = $e\nclass Sub$n(r$n.Base):\n    def scale(self):\n        return v$n⟦¦ + 10⟧\nr$n = Sub$n",
        "$o().run(x)",
        both=False,
    ),
    "table of a metaclass": _reached("r$n.Meta.table['k'] = $e", "$o.configured(x)"),
    "attribute behind getattr": _reached("r$n.FLAGGED._kept['other'] = $e", "$o.flagged(x)"),
    "attribute behind a property": _reached(
        "r$n.FLAGGED._kept['k'] = $e", "$o.flagged(x)", head="r$n.FLAGGED._kept['other'] = 1\n"
    ),
    "value of a weak dict": _reached(
        "r$n.WEAK[r$n.Base] = $e",
        "$o.weakly(x)",
        head="kept$n = r$n.Keeper()\nkept$n.k = 2\nr$n.VALUES['k'] = kept$n\n",
    ),
    "object of a weak dict": _reached(
        "r$n.VALUES['k'].k = $e",
        "$o.weakly(x)",
        head="kept$n = r$n.Keeper()\nr$n.VALUES['k'] = kept$n\nr$n.WEAK[r$n.Base] = 2\n",
    ),
    "deque": _reached("r$n.QUEUE[0] = $e", "$o.queued(x)"),
    "ordered dict": _reached("r$n.ORDERED['k'] = $e", "$o.queued(x)"),
    "namespace": _reached("r$n.SPACE.k = $e", "$o.queued(x)"),
    "keyword of a partial": _reached("r$n.PARTIAL.keywords['k'] = $e", "$o.queued(x)"),
    "array": _reached("r$n.TABLE[1] = $e", "$o.arrayed(x)"),
    "masked array": _reached("r$n.MASKED[0] = $e", "$o.arrayed(x)"),
    "mask": _reached("r$n.MASKED.mask = [$e > 10, False]", "$o.arrayed(x)"),
    "thread's own": _reached("r$n.LOCAL.k = $e", "$o.local(x)"),
    "object in an object": _reached("r$n.KEEPER.inner.k.k = $e", "$o.kept(x)"),
    "object that replaces another": _reached("r$n.KEEPER.inner = r$n.Node(r$n.Node($e))", "$o.kept(x)"),
    "closure of a wrapper": _reached("r$n.wrapped.calls()['by'] = $e", "$o.wrapped(x)"),
    "dispatch": _reached("r$n.dispatched.register(str, lambda k, v=$e: v)", "$o.dispatched('a')"),
    "attribute of sys": _reached("import sys\nsys.fakelib_k = $e", "$o.from_sys(x)"),
    "attribute of threading": _reached("import threading\nthreading.fakelib_k = $e", "$o.from_sys(x)"),
    "attribute of warnings": _reached("import warnings\nwarnings.fakelib_k = $e", "$o.from_sys(x)"),
    "filters of warnings": _reached(
        "import warnings\nfor i in range($e):\n    warnings.filterwarnings('ignore', f'fakelib {i}')",
        "$o.counted(x)",
        both=False,
    ),
    "parameters of a function": _reached(
        "v$n = $e\ndef g$n(a⟦¦, b, c⟧): ...\nr$n = (r$n, g$n)", "$o[0].inspected($o[1], x)", both=False
    ),
    "inspect itself": _reached(
        "import inspect\nv$n = $e\nclass S$n:\n    parameters = 'a' * v$n\ninspect.signature = lambda f: S$n",
        "$o.inspected(len, x)",
        both=False,
    ),
    "lazy module": _reached("import fakelib.late\nfakelib.late.K = $e", "$o.lazily(x)", both=False),
    "module by its name": _reached(
        "import fakelib.inner\nfakelib.inner.K$n = $e", "$o.told('K' + '$n', x)", both=False
    ),
    "global of the caller": _reached("FAKELIB_K = $e", "$o.from_frame(x)", both=False),
    "cached property": _reached("r$n.SPACE.k = $e\nr$n.LAZY.k", "$o.lazy(x)", both=False),
    "cached property that is set": _reached("r$n.LAZY.k = $e", "$o.lazy(x)"),
    "class of an object": _reached(
        "v$n = $e\nclass Other$n(r$n.Keeper):\n    inner = r$n.Node(r$n.Node(v$n))\nr$n.KEEPER.__class__ = Other$n\ndel r$n.KEEPER.inner",
        "$o.kept(x)",
        both=False,
    ),
    "module class": _reached(
        "import types\nv$n = $e\nclass M$n(types.ModuleType):\n    @property\n    def SPACE(self):\n        return r$n.Node(v$n)\nsp$n = r$n\ndel r$n.SPACE\nr$n.__class__ = M$n",
        "$o.SPACE.k",
        both=False,
    ),
}

_TORCH = {
    "deterministic algorithms": _torch(
        "torch.use_deterministic_algorithms(⟦False¦True⟧)\nk$n = $e",
        "(2 + torch.are_deterministic_algorithms_enabled())",
    ),
    "default device": _torch(
        "torch.set_default_device('⟦cpu¦cpu:0⟧')\nk$n = $e", "len(str(torch.get_default_device()))"
    ),
    "matmul precision": _torch(
        "torch.set_float32_matmul_precision('⟦highest¦high⟧')\nk$n = $e", "len(torch.get_float32_matmul_precision())"
    ),
    "validation of distributions": _torch(
        "torch.distributions.Distribution.set_default_validate_args(⟦True¦False⟧)\nk$n = $e",
        "(2 + torch.distributions.Distribution._validate_args)",
    ),
    "fast path of attention": _torch(
        "torch.backends.mha.set_fastpath_enabled(⟦True¦False⟧)\nk$n = $e",
        "(2 + torch.backends.mha.get_fastpath_enabled())",
    ),
    "early stop of checkpoints": _torch(
        "torch.utils.checkpoint.set_checkpoint_early_stop(⟦True¦False⟧).__enter__()\nk$n = $e",
        "(2 + bool(torch.utils.checkpoint._enable_checkpoint_early_stop))",
        "import torch.utils.checkpoint\n",
    ),
    "module that another calls F": _torch(
        "v$n = $e\ntorch.nn.modules.activation.F = types.SimpleNamespace(relu6=lambda x, inplace: x * v$n, **{k: f for k, f in vars(torch.nn.functional).items() if k != 'relu6' and k.isidentifier()})",
        "torch.nn.ReLU6()(x) + torch.nn.Hardtanh()(x)",
        "import types\n",
    ),
    "code of a method": _torch(
        "torch.nn.Identity.forward.__code__ = (lambda self, input: input * ⟦2¦9⟧).__code__\nk$n = $e",
        "torch.nn.Identity()(x)",
    ),
    "default of a class": _torch(
        "torch.nn.Hardtanh.__init__.__defaults__ = (-1.0, 1 / $e, False, None, None)",
        "torch.nn.Hardtanh()(x)",
        change="torch.nn.Hardtanh.__init__.__defaults__ = (-1.0, 1 / $e, False, None, None)",
    ),
    "attribute of a class": _torch(
        "torch.nn.Dropout.extra_scale = $e\ntorch.nn.Dropout.forward = lambda self, x: x * self.extra_scale",
        "torch.nn.Dropout()(x)",
        change="torch.nn.Dropout.extra_scale = $e",
    ),
    "getattr of Module": _torch(
        "v$n = $e\nold$n = torch.nn.Module.__getattr__\ntorch.nn.Module.__getattr__ = lambda self, name: v$n if name == 'zz$n' else old$n(self, name)",
        "torch.nn.Identity().zz$n",
    ),
    "base of a class": _torch(
        "v$n = $e\nclass Mixin$n(torch.nn.ReLU):\n    def forward(self, x):\n        return x * v$n\ntorch.nn.ReLU6.__bases__ = (Mixin$n,)\ndel torch.nn.ReLU6.__init__",
        "torch.nn.ReLU6.__bases__[0]()(x)",
    ),
    "optimizer class": _torch(
        "torch.optim.SGD.scale = $e", "torch.optim.SGD.scale", change="torch.optim.SGD.scale = $e"
    ),
    "getattr in a loop": _torch(
        "v$n = $e\nfor name in ('relu', 'selu'):\n    setattr(torch.nn.functional, name + '_$n', lambda x: x * v$n)",
        "getattr(torch.nn.functional, 'relu' + '_$n')(x)",
    ),
    "size of a padding": _torch(
        "v$n = $e\ntorch.nn.modules.utils._pair = lambda k: (v$n, v$n)\ntorch.nn.modules.pooling._pair = torch.nn.modules.utils._pair",
        "torch.nn.modules.utils._pair(1)[0]",
    ),
    "reduction names": _torch("v$n = $e\ntorch.nn._reduction.scale$n = v$n", "torch.nn._reduction.scale$n"),
    "handler of torch functions": _torch(
        "v$n = $e\nold$n = torch.overrides.handle_torch_function\ntorch.overrides.zz$n = v$n", "torch.overrides.zz$n"
    ),
    "norm of numpy": _torch(
        "v$n = $e\nold$n = numpy.sum\nnumpy.sum = lambda *a, **k: old$n(*a, **k) * v$n",
        "int(__import__('numpy').sum([1, 2]))",
        "import numpy\n",
    ),
    "method of a class of the standard library": _torch(
        "v$n = $e\ncollections.Counter.total = lambda self: v$n",
        "__import__('collections').Counter('aa').total()",
        "import collections\n",
    ),
    "function that another calls": _torch(
        "v$n = $e\ntextwrap.dedent = lambda text: 'a' * v$n",
        "len(__import__('textwrap').dedent('b'))",
        "import textwrap, inspect\n",
    ),
    "constant of a module": _torch(
        "heapq.LIMIT = $e", "__import__('heapq').LIMIT", "import heapq\n", "import heapq\nheapq.LIMIT = $e"
    ),
    "abstract number": _torch(
        "v$n = $e\nnumbers.Integral.scale = v$n", "__import__('numbers').Integral.scale", "import numbers\n"
    ),
}

REACHED = {
    **{f"of fakelib: {name}": form for name, form in _FAKELIB.items()},
    **{f"of torch and Python: {name}": form for name, form in _TORCH.items()},
}
