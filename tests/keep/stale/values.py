"""Where a number comes from: the text of a module, a file, the environment, the command, settings of the process."""

from __future__ import annotations

from tests.keep.stale.form import Form, Takes


def _value(head: str, read: str = "$o", change: str = "", **files: str) -> Form:
    named = {name.replace("__", ".").replace("_n", "$n"): text for name, text in files.items()}
    return Form(head, read, change, Takes.NOTHING, named)


def _environment(head: str, read: str = "$o", change: str = "") -> Form:
    return Form(head, read, change, Takes.NOTHING, {"env:STALE_$n": "$v"})


def _function(body: str, imports: str = "") -> str:
    """A function that is run by each call."""
    return f"{imports}def o$n():\n    {body}\n"


VALUES = {
    "literal": _value("o$n = $v"),
    "loop at import": _value("o$n = 0\nfor _ in range($v):\n    o$n += 1"),
    "list changed at import": _value("l$n = [1]\ndef grow$n(k):\n    l$n[0] += k\ngrow$n($v)\no$n = l$n[0]"),
    "global statement": Form(
        "o$n = 1\ndef set$n(k):\n    global o$n\n    o$n = k\nset$n($v)", takes=Takes.NOTHING, is_flat=True
    ),
    "conditional import": _value(
        "try:\n    from ⟦a_$n¦b_$n⟧ import K as o$n\nexcept ImportError:\n    o$n = 1",
        **{"root:a_$n.py": "K = 3", "root:b_$n.py": "K = 5"},
    ),
    "star import": Form(
        "from star_$n import *\no$n = STAR$n",
        takes=Takes.NOTHING,
        files={"root:star_$n.py": "STAR$n = $v"},
        is_flat=True,
    ),
    "chain of imports": _value(
        "from c_$n import K as o$n", **{"root:c_$n.py": "from d_$n import K", "root:d_$n.py": "K = $v"}
    ),
    "module made by exec": _value("names$n = {}\nexec('k = $v', names$n)\no$n = names$n['k']"),
    "default of a lambda": _value("o$n = (lambda k=$v: k)()"),
    # files
    "JSON at import": _value(
        "import json\nwith open(os.path.join(HERE, 'j$n.json')) as file:\n    o$n = json.load(file)['a'][0]",
        j_n__json='{"a": [$v]}',
    ),
    "JSON inside": _value(
        _function("with open(os.path.join(HERE, 'j$n.json')) as f:\n        return json.load(f)['a']", "import json\n"),
        "$o()",
        j_n__json='{"a": $v}',
    ),
    "JSON with an object hook": _value(
        "import json\nclass Add$n(dict): ...\ndef o$n():\n"
        "    return json.loads('[1, 2]', parse_int=lambda text: int(text) + add$n)[0]\nadd$n = $v",
        "$o()",
        "$o.__globals__['add$n'] = $e",
    ),
    "text inside": _value(
        _function("with open(os.path.join(HERE, 't$n.txt')) as file:\n        return int(file.read())"),
        "$o()",
        t_n__txt="$v",
    ),
    "pathlib": _value(
        _function("return int(pathlib.Path(HERE, 't$n.txt').read_text())", "import pathlib\n"), "$o()", t_n__txt="$v"
    ),
    "read by a file descriptor": _value(
        _function(
            "d = os.open(os.path.join(HERE, 't$n.txt'), os.O_RDONLY)\n    k = int(os.read(d, 9))\n"
            "    os.close(d)\n    return k"
        ),
        "$o()",
        t_n__txt="$v",
    ),
    "configparser": _value(
        _function(
            "import configparser\n    found = configparser.ConfigParser()\n"
            "    found.read(os.path.join(HERE, 'c$n.ini'))\n    return int(found['a']['k'])"
        ),
        "$o()",
        c_n__ini="[a]\nk = $v\n",
    ),
    "configparser at import": _value(
        "import configparser\no$n = configparser.ConfigParser()\no$n.read(os.path.join(HERE, 'c$n.ini'))",
        "int($o['a']['k'])",
        "$o['a']['k'] = str($e)",
        c_n__ini="[a]\nk = $v\n",
    ),
    "genfromtxt": _value(
        _function("return int(np.genfromtxt(os.path.join(HERE, 't$n.txt')).sum())", "import numpy as np\n"),
        "$o()",
        t_n__txt="$v 1\n",
    ),
    "loadtxt at import": _value(
        "import numpy as np\no$n = np.loadtxt(os.path.join(HERE, 't$n.txt'))",
        "int($o[0])",
        "$o[0] = $e",
        t_n__txt="$v 1\n",
    ),
    "fromfile": _value(
        _function("return int(np.fromfile(os.path.join(HERE, 't$n.txt'), sep=' ')[0])", "import numpy as np\n"),
        "$o()",
        t_n__txt="$v 1",
    ),
    "csv": _value(
        _function(
            "with open(os.path.join(HERE, 't$n.csv')) as f:\n        return int(next(csv.reader(f))[1])", "import csv\n"
        ),
        "$o()",
        t_n__csv="a,$v\n",
    ),
    "toml": _value(
        _function(
            "with open(os.path.join(HERE, 't$n.toml'), 'rb') as f:\n        return tomllib.load(f)['k']",
            "import tomllib\n",
        ),
        "$o()",
        t_n__toml="k = $v\n",
    ),
    "linecache": _value(
        _function("return int(linecache.getline(os.path.join(HERE, 't$n.txt'), 1))", "import linecache\n"),
        "$o()",
        t_n__txt="$v\n",
    ),
    "length of a file": _value(
        _function("return os.path.getsize(os.path.join(HERE, 't$n.txt'))"), "$o()", t_n__txt="⟦aaa¦bbbbb⟧"
    ),
    "files of a folder": _value(
        _function("return 1 + sum(name.startswith('⟦x¦t⟧$n') for name in os.listdir(HERE))"), "$o()", t_n__txt="1"
    ),
    "data of a package": _value(
        _function("return int(pkgutil.get_data(__name__, 't$n.txt'))", "import pkgutil\n"), "$o()", t_n__txt="$v"
    ),
    "module from a path": _value(
        "import importlib.util as iu$n\nspec$n = iu$n.spec_from_file_location('lone$n', os.path.join(HERE, 'l$n.txt.py'))"
        "\no$n = iu$n.module_from_spec(spec$n)\nspec$n.loader.exec_module(o$n)",
        "$o.K",
        "$o.K = $e",
        l_n__txt__py="K = $v",
    ),
    "runpy": _value(
        _function("return runpy.run_path(os.path.join(HERE, 'r$n.py'))['K']", "import runpy\n"),
        "$o()",
        r_n__py="K = $v",
    ),
    "import inside": _value(
        "def o$n():\n    import late_$n\n    return late_$n.K", "$o()", **{"root:late_$n.py": "K = $v"}
    ),
    "import of another inside": _value(
        "def o$n():\n    import ⟦later_$n¦other_$n⟧ as m\n    return m.K",
        "$o()",
        **{"root:later_$n.py": "K = 3", "root:other_$n.py": "K = 7"},
    ),
    # environment and command
    "environment at import": _environment("o$n = int(os.environ['STALE_$n'])"),
    "environment inside": _environment(
        _function("return int(os.environ['STALE_$n'])"), "$o()", "import os\nos.environ['STALE_$n'] = str($e)"
    ),
    "getenv inside": _environment(
        _function("return int(os.getenv('STALE_$n', '1'))"), "$o()", "import os\nos.environ['STALE_$n'] = str($e)"
    ),
    "environ of its own name": _environment(
        "from os import environ as env$n\n" + _function("return int({**env$n}['STALE_$n'])"),
        "$o()",
        "import os\nos.environ['STALE_$n'] = str($e)",
    ),
    "expandvars": _environment(_function("return int(os.path.expandvars('$STALE_$n'))"), "$o()"),
    "command at import": Form(
        "import sys\no$n = int([a for a in sys.argv if a.startswith('--k$n=')][0].partition('=')[2])",
        takes=Takes.NOTHING,
        files={"argv:$n": "--k$n=$v"},
    ),
    "command inside": Form(
        "import sys\n" + _function("return int([a for a in sys.argv if a.startswith('--k$n=')][0].partition('=')[2])"),
        "$o()",
        takes=Takes.NOTHING,
        files={"argv:$n": "--k$n=$v"},
    ),
    "argparse of the command": Form(
        "import argparse\nparser$n = argparse.ArgumentParser()\nparser$n.add_argument('--k$n', type=int, default=1)\n"
        "o$n = parser$n.parse_known_args()[0]",
        "$o.k$n",
        "$o.k$n = $e",
        Takes.NOTHING,
        {"argv:$n": "--k$n=$v"},
    ),
    # settings of the process
    "logger level": _value(
        "import logging\no$n = logging.getLogger('stale.$n')\no$n.setLevel($v)",
        "$o.getEffectiveLevel()",
        "$o.setLevel($e)",
    ),
    "logger that is asked": _value(
        "import logging\nlogging.getLogger('stale.$n').setLevel(⟦10¦50⟧)\n"
        + _function("return 2 + logging.getLogger('stale.$n').isEnabledFor(logging.INFO)"),
        "$o()",
    ),
    "decimal context": _value(
        "import decimal\ndecimal.getcontext().prec = $v\n"
        + _function("return float(decimal.Decimal(1) / decimal.Decimal(7))"),
        "$o()",
        "import decimal\ndecimal.getcontext().prec = $e",
    ),
    "decimal default context": _value(
        "import decimal\ndecimal.DefaultContext.Emax = 100 + $v\n" + _function("return decimal.DefaultContext.Emax"),
        "$o()",
    ),
    "recursion limit": _value(
        "import sys\nsys.setrecursionlimit(2000 + $v)\n" + _function("return sys.getrecursionlimit() - 2000"),
        "$o()",
        "import sys\nsys.setrecursionlimit(2000 + $e)",
    ),
    "garbage threshold": _value(
        "import gc\ngc.set_threshold(700 + $v)\n" + _function("return gc.get_threshold()[0] - 699"), "$o()"
    ),
    "NumPy print options": _value(
        "import numpy as np\nnp.set_printoptions(precision=$v)\n"
        + _function("return np.get_printoptions()['precision']"),
        "$o()",
        "import numpy as np\nnp.set_printoptions(precision=$e)",
    ),
    "NumPy errors": _value(
        "import numpy as np\nnp.seterr(divide='⟦warn¦ignore⟧')\n" + _function("return len(np.geterr()['divide'])"),
        "$o()",
    ),
    "torch print options": _value(
        "torch.set_printoptions(precision=$v)\n"
        + _function(
            "return len(str(np$n.float64(1/3))) and torch._tensor_str.PRINT_OPTS.precision", "import numpy as np$n\n"
        ),
        "$o()",
        "import torch\ntorch.set_printoptions(precision=$e)",
    ),
    "working folder": _value(
        "os.makedirs(os.path.join(HERE, '⟦#cwd$n#a¦bbbb⟧'), exist_ok=True)\nos.chdir(os.path.join(HERE, '⟦#cwd$n#a¦bbbb⟧'))\n"
        + _function("return len(os.path.basename(os.getcwd()))"),
        "$o()",
    ),
    "warning filters": _value(
        "import warnings\nfor _ in range($v):\n    warnings.filterwarnings('ignore', message=f'stale $n {_}')\n"
        + _function("return sum('stale $n' in f[1].pattern for f in warnings.filters if f[1])"),
        "$o()",
    ),
    "socket timeout": _value(
        "import socket\nsocket.setdefaulttimeout($v)\n" + _function("return int(socket.getdefaulttimeout())"), "$o()"
    ),
    "interpreter path": _value(
        "import sys\nsys.path.extend(['/nowhere$n'] * $v)\n" + _function("return sys.path.count('/nowhere$n')"), "$o()"
    ),
    "loaded modules": _value(
        "⟦¦import quiet_$n⟧\nimport sys\n" + _function("return 3 + ('quiet_$n' in sys.modules)"),
        "$o()",
        **{"root:quiet_$n.py": ""},
    ),
    "seeded Python numbers": _value("import random\no$n = random.Random($v).randint(1, 10**6)"),
    "seeded NumPy generator": _value(
        "import numpy as np\no$n = np.random.RandomState($v)", "int($o.get_state()[1][0] % 1000)"
    ),
    "context variable": _value(
        "import contextvars\no$n = contextvars.ContextVar('o$n', default=$v)", "$o.get()", "$o.set($e)"
    ),
    "context variable that was set": _value(
        "import contextvars\no$n = contextvars.ContextVar('o$n', default=1)\no$n.set($v)", "$o.get()", "$o.set($e)"
    ),
    "thread's own": _value("import threading\no$n = threading.local()\no$n.k = $v", "$o.k", "$o.k = $e"),
    "name of the thread": _value(
        "import threading\nthreading.current_thread().name = 'a' * $v\n"
        + _function("return len(threading.current_thread().name)"),
        "$o()",
    ),
    "locale": _value(
        "import locale\nlocale.setlocale(locale.LC_CTYPE, '⟦C¦C.UTF-8⟧')\n"
        + _function("return len(locale.setlocale(locale.LC_CTYPE))"),
        "$o()",
    ),
    "worker of a loader": _value(
        "import torch.utils.data._utils.worker as worker$n\nclass Info$n: ...\n"
        "worker$n._worker_info = Info$n()\nworker$n._worker_info.id = $v\n"
        + _function("return torch.utils.data.get_worker_info().id"),
        "$o()",
        "import torch\ntorch.utils.data._utils.worker._worker_info.id = $e",
    ),
    "default dtype": _value(
        "torch.set_default_dtype(torch.float⟦32¦64⟧)\n" + _function("return torch.get_default_dtype().itemsize"), "$o()"
    ),
    # the code itself
    "line number": _value("⟦¦\n\n\n⟧import sys\n" + _function("return sys._getframe().f_lineno % 1000"), "$o()"),
    "line of a traceback": _value(
        "⟦¦\n\n\n⟧def o$n():\n    try:\n        raise KeyError\n    except KeyError as error:\n"
        "        return error.__traceback__.tb_lineno",
        "$o()",
    ),
    "docstring": _value("def o$n():\n    'a⟦¦bcd⟧'\n    return len(o$n.__doc__)", "$o()"),
    "annotation": _value("def g$n(k: ⟦'a'¦'abc'⟧): ...\no$n = g$n", "len($o.__annotations__['k'])"),
    "name of a function": _value("def ⟦#nm$n#g¦other⟧$n(): ...\no$n = ⟦#nm$n#g¦other⟧$n", "len($o.__name__)"),
    "source text": _value(
        "import inspect\ndef o$n():\n    # a⟦¦bcd⟧\n    return len(inspect.getsource(o$n)) % 97", "$o()"
    ),
    "constants of a code object": _value("def g$n():\n    return $v\no$n = g$n", "$o.__code__.co_consts[-1]"),
    "local variables": _value("def g$n():\n    k = $v\n    return locals()\no$n = g$n", "$o()['k']"),
}
