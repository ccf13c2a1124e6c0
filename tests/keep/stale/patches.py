"""What users put into libraries: attributes, entries of registries, defaults, functions in the place of others."""

from __future__ import annotations

from tests.keep.stale.form import Form, Takes


def _attribute(imports: str, home: str) -> Form:
    """A new attribute of something in a library."""
    return Form(f"{imports}\n{home}.z$n = $e\no$n = {home}", "$o.z$n", "$o.z$n = $e", is_flat=True)


def _entry(imports: str, home: str) -> Form:
    """A new entry of a table in a library."""
    return Form(f"{imports}\n{home}['z$n'] = $e\no$n = {home}", "$o['z$n']", "$o['z$n'] = $e", is_flat=True)


def _patch(head: str, read: str, change: str = "") -> Form:
    return Form(head, read, change, Takes.NUMBER, is_flat=True)


_HOMES = {
    "torch": ("import torch", "torch"),
    "torch.nn.functional": ("import torch.nn.functional", "torch.nn.functional"),
    "torch.nn.Linear": ("import torch", "torch.nn.Linear"),
    "torch.nn.Module": ("import torch", "torch.nn.Module"),
    "torch.nn.Parameter": ("import torch", "torch.nn.Parameter"),
    "torch.Tensor": ("import torch", "torch.Tensor"),
    "a function of torch": ("import torch", "torch.nn.functional.softmax"),
    "torch.backends": ("import torch", "torch.backends"),
    "a lazy module of torch": ("import torch.nn.utils.stateless", "torch.nn.utils.stateless"),
    "torch.ops": ("import torch", "torch.ops"),
    "numpy": ("import numpy", "numpy"),
    "numpy.linalg": ("import numpy", "numpy.linalg"),
    "numpy.ma.MaskedArray": ("import numpy.ma", "numpy.ma.MaskedArray"),
    "json": ("import json", "json"),
    "json.JSONEncoder": ("import json", "json.JSONEncoder"),
    "a function of json": ("import json", "json.dumps"),
    "math": ("import math", "math"),
    "os": ("import os", "os"),
    "sys": ("import sys", "sys"),
    "builtins": ("import builtins", "builtins"),
    "functools": ("import functools", "functools"),
    "collections.Counter": ("import collections", "collections.Counter"),
    "logging.root": ("import logging", "logging.root"),
    "fakelib": ("import fakelib", "fakelib"),
    "fakelib.STATE": ("import fakelib", "fakelib.STATE"),
    "a function of fakelib": ("import fakelib", "fakelib.call"),
    "a module of fakelib": ("import fakelib.inner", "fakelib.inner"),
    "fakens.two": ("import fakens.two", "fakens.two"),
}
_TABLES = {
    "names of torch.nn.functional": ("import torch", "vars(torch.nn.functional)"),
    "fakelib.OPTIONS": ("import fakelib", "fakelib.OPTIONS"),
    "fakelib.OPTIONS['a']": ("import fakelib", "fakelib.OPTIONS['a']"),
    "json.decoder.BACKSLASH": ("import json", "json.decoder.BACKSLASH"),
    "copyreg.dispatch_table": ("import copyreg", "copyreg.dispatch_table"),
    "mimetypes": ("import mimetypes", "mimetypes.types_map"),
    "sys.modules": ("import sys", "sys.modules"),
}

PATCHES = {
    **{f"attribute of {name}": _attribute(*where) for name, where in _HOMES.items()},
    **{f"entry of {name}": _entry(*where) for name, where in _TABLES.items()},
    "hook of fakelib": Form(
        "import fakelib\nv$n = $e\nfakelib.HOOKS.append(v$n)\no$n = fakelib",
        "$o.HOOKS[0]",
        "$o.HOOKS[0] = $e",
        is_flat=True,
    ),
    # a library's own code reads it
    "option of fakelib": _patch(
        "import fakelib\nfakelib.OPTIONS['scale']['by'] = $e\no$n = fakelib",
        "$o.scaled(x)",
        "$o.OPTIONS['scale']['by'] = $e",
    ),
    "flag of fakelib": _patch("import fakelib\nfakelib.FLAG = $e\no$n = fakelib", "$o.flagged(x)", "$o.FLAG = $e"),
    "state of fakelib": _patch(
        "import fakelib\nfakelib.STATE.k = $e\no$n = fakelib", "$o.stated(x)", "$o.STATE.k = $e"
    ),
    "class of fakelib": _patch(
        "import fakelib\nfakelib.State.k = $e\no$n = fakelib", "$o.stated(x)", "$o.State.k = $e"
    ),
    "function of fakelib": _patch(
        "import fakelib\nv$n = $e\nfakelib.scale = lambda: v$n\no$n = fakelib", "$o.run(x)", "$o.scale = lambda: $e"
    ),
    "method of fakelib": _patch(
        "import fakelib\nv$n = $e\nfakelib.State.get = lambda self: v$n\no$n = fakelib",
        "$o.got(x)",
        "$o.State.get = lambda self: $e",
    ),
    "default of fakelib": _patch(
        "import fakelib\nfakelib.powered.__defaults__ = ($e,)\no$n = fakelib",
        "$o.powered(x)",
        "$o.powered.__defaults__ = ($e,)",
    ),
    "keyword default of fakelib": _patch(
        "import fakelib\nfakelib.shifted.__kwdefaults__ = {'k': $e}\no$n = fakelib",
        "$o.shifted(x)",
        "$o.shifted.__kwdefaults__['k'] = $e",
    ),
    "code of fakelib": _patch(
        "import fakelib\nfakelib.scale.__code__ = (lambda: ⟦2¦9⟧).__code__\nv$n = $e\no$n = fakelib", "$o.run(x)"
    ),
    "constant of a dependency": _patch(
        "import fakelib, fakedep\nfakedep.K = $e\no$n = fakelib", "$o.deep(x)", "import fakedep\nfakedep.K = $e"
    ),
    "instance of fakelib": _patch(
        "import fakelib\nfakelib.DEFAULT = fakelib.Scaler($e)\no$n = fakelib",
        "$o.defaulted(x)",
        "$o.DEFAULT = $o.Scaler($e)",
    ),
    "cached by fakelib": _patch(
        "import fakelib\nfakelib.FLAG = $e\nfakelib.remembered()\no$n = fakelib", "$o.remembered() * x"
    ),
    "closure of fakelib": _patch(
        "import fakelib\nfakelib.configured = fakelib.configure($e)\no$n = fakelib", "$o.configured(x)"
    ),
    "context of fakelib": _patch(
        "import fakelib\nfakelib.CONTEXT.set($e)\no$n = fakelib", "$o.in_context(x)", "$o.CONTEXT.set($e)"
    ),
    "environment of fakelib": _patch(
        "import fakelib\nos.environ['FAKELIB_K'] = str($e)\no$n = fakelib",
        "$o.from_environment(x)",
        "import os\nos.environ['FAKELIB_K'] = str($e)",
    ),
    "linear of torch.nn.functional": _patch(
        "import torch.nn.functional as F$n\nv$n = $e\nold$n = F$n.linear\nF$n.linear = lambda *a: old$n(*a) * v$n\n"
        "o$n = torch.nn.Linear(3, 3, bias=False)\ntorch.nn.init.ones_(o$n.weight)",
        "$o(x)",
    ),
    "forward of torch.nn.Linear": _patch(
        "v$n = $e\ntorch.nn.Linear.forward = lambda self, x: x * v$n\no$n = torch.nn.Linear(3, 3)", "$o(x)"
    ),
    "call of torch.nn.Module": _patch(
        "v$n = $e\nold$n = torch.nn.Module.__call__\ntorch.nn.Identity.__call__ = lambda self, x: old$n(self, x) * v$n\no$n = torch.nn.Identity()",
        "$o(x)",
    ),
    "default of torch.nn.functional": _patch(
        "torch.nn.functional.leaky_relu.__defaults__ = (float($e), False)\no$n = torch.nn.LeakyReLU",
        "torch.nn.functional.leaky_relu(-x)",
        "torch.nn.functional.leaky_relu.__defaults__ = (float($e), False)",
    ),
    "default of a torch module": _patch(
        "torch.nn.Softplus.__init__.__defaults__ = ($e, 20.0)\no$n = torch.nn.Softplus",
        "$o()(x)",
        "$o.__init__.__defaults__ = ($e, 20.0)",
    ),
    "vector norm": _patch(
        "v$n = $e\nold$n = torch.linalg.vector_norm\ntorch.linalg.vector_norm = lambda *a, **k: old$n(*a, **k) * v$n\no$n = torch",
        "x.norm()",
    ),
    "method of Tensor": _patch(
        "v$n = $e\nold$n = torch.Tensor.relu\ntorch.Tensor.relu = lambda self: old$n(self) * v$n\no$n = torch",
        "x.relu()",
    ),
    "einsum path": _patch(
        "v$n = $e\nold$n = torch.functional.einsum\ntorch.einsum = lambda *a: old$n(*a) * v$n\no$n = torch",
        "torch.einsum('...->...', x)",
    ),
    "reduction of a loss": _patch(
        "v$n = $e\nold$n = torch.nn._reduction.get_enum\ntorch.nn._reduction.get_enum = lambda r: ⟦old$n(r)¦2⟧\no$n = torch.nn.MSELoss()",
        "$o(x, x * 3)",
    ),
    "hook of all modules": _patch(
        "v$n = $e\ntorch.nn.modules.module.register_module_forward_hook(lambda m, a, r: r * v$n if isinstance(m, torch.nn.ReLU6) else None)\no$n = torch.nn.ReLU6()",
        "$o(x)",
    ),
    "divergence": _patch(
        "from torch.distributions import kl as kl$n, Normal as Normal$n\nclass N$n(Normal$n): ...\nv$n = $e\n"
        "@kl$n.register_kl(N$n, N$n)\ndef div$n(p, q):\n    return p.loc * v$n\no$n = N$n",
        "torch.distributions.kl_divergence($o(x, x, validate_args=False), $o(x, x, validate_args=False))",
    ),
    "constraint registry": _patch(
        "import torch.distributions as td$n\nfrom torch.distributions import constraints as c$n\nclass Mine$n(c$n.Constraint): ...\nv$n = $e\n"
        "@td$n.transform_to.register(Mine$n)\ndef t$n(c):\n    return td$n.AffineTransform(0.0, float(v$n))\no$n = Mine$n()",
        "torch.distributions.transform_to($o)(x)",
    ),
    "pytree flatten function": _patch(
        "import torch.utils._pytree as tree$n\nclass N$n: ...\nv$n = $e\n"
        "tree$n.register_pytree_node(N$n, lambda n: ([v$n⟦¦ + 1⟧], None), lambda c, _: N$n())\no$n = N$n()",
        "__import__('torch').utils._pytree.tree_leaves($o)[0]",
    ),
    "default tensor printer": _patch(
        "torch._tensor_str.PRINT_OPTS.edgeitems = $e\no$n = torch",
        "torch._tensor_str.PRINT_OPTS.edgeitems",
        "$o._tensor_str.PRINT_OPTS.edgeitems = $e",
    ),
    "compiler setting": _patch(
        "import torch._inductor.config as ic$n\nic$n.max_fusion_size = $e\no$n = ic$n",
        "$o.max_fusion_size",
        "$o.max_fusion_size = $e",
    ),
    "sum of NumPy": _patch(
        "import numpy as np\nv$n = $e\nnp.linalg._linalg.sqrt = lambda k: k * 0 + v$n\no$n = np",
        "float($o.linalg.norm([3.0, 4.0]))",
    ),
    "function of statistics": _patch(
        "import statistics\nv$n = $e\nstatistics.fsum = lambda k: v$n\no$n = statistics", "$o.fmean([1.0, 2.0])"
    ),
    "decoder of json": _patch(
        "import json\nv$n = $e\njson._default_decoder = json.JSONDecoder(parse_int=lambda k: v$n)\no$n = json",
        "$o.loads('1')",
    ),
    "table of string": _patch(
        "import string\nstring.ascii_lowercase = 'a' * $e\no$n = string",
        "len($o.ascii_lowercase)",
        "$o.ascii_lowercase = 'a' * $e",
    ),
    "builtin function": _patch(
        "import builtins\nv$n = $e\nold$n = builtins.len\nbuiltins.len = lambda k: old$n(k) + v$n if k == 'q$n' else old$n(k)\no$n = 1",
        "len('q' + '$n')",
    ),
    "import hook": _patch("import sys\nv$n = $e\no$n = sys\nsys.stale$n = v$n", "getattr($o, 'stale' + '$n')"),
}
