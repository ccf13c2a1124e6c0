"""Files from strangers: code in them does not run, whatever form it has."""

import hashlib
import marshal
import subprocess
import sys
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from typing import Any

import pytest

import foregrad as fg
from foregrad.cache.format.keys import SharedKey
from foregrad.cache.serialize import keyring
from tests.attacks.hostile import CANARY, CREATES, Saved, attempt, module, shifted, step

STRANGER = SharedKey(b"s" * 32)


@pytest.fixture(autouse=True)
def no_canary():
    CANARY.unlink(missing_ok=True)
    yield
    assert not CANARY.exists(), "code of the file has run"


def with_text(saved: Saved, line: str, name: str = "call") -> Saved:
    """The program with one more line in its functions of a name."""
    table = saved.table
    for one in table:
        if one.get("is") == "function" and one["name"] == name:
            head, _, rest = one["lines"][0].partition("\n")
            one["lines"][:1] = [head, f"    {line}", *filter(None, [rest])]
            one.pop("bytecode", None)
    return saved.with_table(table)


def with_check(saved: Saved, parts: dict[str, Any]) -> Saved:
    """The program with one more check in its calls."""
    table = saved.table
    for one in table:
        if one.get("is") == "function" and one["name"] == "call":
            head, _, rest = one["lines"][0].partition("\n")
            one["lines"][:1] = [head, parts, *filter(None, [rest])]
            one.pop("bytecode", None)
    return saved.with_table(table)


def with_name(saved: Saved, *objects: Any, line: str = "hostile()") -> Saved:
    """The program with a call of the last of these objects in its functions."""
    table, places = saved.with_objects(*objects)
    for one in table:
        if one.get("is") == "function" and one["name"] == "call":
            one["names"]["hostile"] = {"is": "object", "at": places[-1]}
    return with_text(shifted(saved.with_table(table), len(objects)), line)


def test_what_nobody_has_changed_runs_as_data(tmp_path: Path):
    for saved in (step(), module()):
        assert attempt(saved, tmp_path / "unsigned.fg") == "runs"
        assert attempt(saved, tmp_path / "signed.fg", STRANGER) == "runs"


@pytest.mark.parametrize("signer", [None, STRANGER], ids=["unsigned", "signed by a stranger"])
def test_bytecode_is_not_used(signer: SharedKey | None, tmp_path: Path):
    hostile = MAGIC_NUMBER + marshal.dumps(compile(f"{CREATES}\ndef call(args, kwargs): pass", "x", "exec"))
    saved = step()
    blobs = {name: hostile if name.startswith("bytecode/") else data for name, data in saved.blobs.items()}
    assert attempt(Saved(saved.about, blobs, saved.call), tmp_path / "file.fg", signer) == "runs"


LINES = [
    CREATES,
    f"__import__('pathlib').Path({str(CANARY)!r}).touch()",
    f"exec({CREATES!r})",
    f"eval({CREATES!r})",
    f"args.__class__.__base__.__subclasses__()[0].__init__.__globals__['__builtins__']['open']({str(CANARY)!r}, 'w')",
    f"call.__globals__['state_is_same'].__self__({str(CANARY)!r})",
    f"x = lambda: {CREATES}",
    f"x = [{CREATES} for y in (1,)]",
    f"(y := {CREATES})",
    f"x = f'{{{CREATES}}}'",
    "import os",
    "from os import system",
    "global call",
    f"@{CREATES}.write\n    def f(): pass",
    f"class C: {CREATES}",
    "x = args.__reduce_ex__(2)",
    f"o0, o1, = args; o0({str(CANARY)!r})",
    f"x = {{}}; x.update(a={CREATES})",
    f"tuple(map(args.__class__, ({CREATES},)))",
    "y = type('X', (), {'__init__': 1})",
    f"assert {CREATES}",
    f"del args[{CREATES}]",
    f"for x in {CREATES}: pass",
    f"while {CREATES}: pass",
    f"if args is None or {CREATES}: return MISS",
    f"return MISS if {CREATES} else MISS",
    f"raise {CREATES}",
    f"yield {CREATES}",
    f"x: {CREATES} = 1",
    f"with {CREATES} as f: pass",
    f"match args:\n        case _: {CREATES}",
    f"x = (1).__class__.__bases__; {CREATES}",
    f"kwargs |= {CREATES}",
    "__builtins__ = args",
    "MISS = args",
    "len = args",
    f"x = {CREATES}.numpy",
    "x = args.data.numpy().tofile('x')",
    f"\x0c{CREATES}",
    f"x = 1\r    {CREATES}",
    "x = " + "(" * 150 + "1" + ",)" * 150,
    "x = " + "-" * 5000 + "1",
    "x = args" + ".data" * 3000,
]


@pytest.mark.parametrize("line", LINES, ids=range(len(LINES)))
@pytest.mark.parametrize("make", [step, module])
def test_text_is_not_run(line: str, make: Any, tmp_path: Path):
    became = attempt(with_text(make(), line), tmp_path / "file.fg")
    assert became in ("UntrustedArtifact", "CorruptArtifact", "loaded, and fails"), became


LIBRARY_LINES = [
    "x = hostile",
    "x = hostile.__dict__",
    "x = hostile.load",
    "x = hostile.serialization",
    "x = (hostile, 1)",
    "hostile.select = 1",
    "x = len(hostile.__dict__)",
    "x = hostile.__dict__.get('load')",
    "x = hostile.__dict__['load']",
    "if hostile: pass",
    "x = hostile.clone(args)",
]


@pytest.mark.parametrize("line", LIBRARY_LINES)
@pytest.mark.parametrize("name", ["torch", "math"])
def test_a_library_is_no_value(line: str, name: str, tmp_path: Path):
    """Who has one can change it for the whole process."""
    hostile = with_name(step(), {"is": "known", "name": name}, line=line.replace("hostile", "library"))
    table = hostile.table
    for one in table:
        if one.get("is") == "function" and "hostile" in one["names"]:
            one["names"]["library"] = one["names"].pop("hostile")
    became = attempt(hostile.with_table(table), tmp_path / "file.fg")
    assert became in ("UntrustedArtifact", "CorruptArtifact"), became


DICT_LINES = [
    "x = args.__dict__",
    "x = owner.__dict__",
    "x = owner.__dict__['__class__']",
    "x = owner.__class__",
    "owner.__dict__['forward'] = args",
    "x = owner; x.__dict__['forward'] = args",
    "x = (owner.__dict__, 1)",
    "x = [owner.__dict__]",
    "x = tuple(owner.__dict__)",
    "return owner.__dict__",
    "x = owner.__dict__ or 1; x['forward'] = 1",
    "x = MISS.__dict__",
]


@pytest.mark.parametrize("line", DICT_LINES)
def test_nobody_gets_hold_of_a_dict_of_attributes(line: str, tmp_path: Path):
    became = attempt(with_text(step(), line), tmp_path / "file.fg")
    assert became in ("UntrustedArtifact", "CorruptArtifact"), became


def test_a_remark_is_not_run(tmp_path: Path):
    """What is looked at when a check fails is said beside it, and shown to people."""
    for part in ("looked_at", "condition"):
        parts = {"condition": "args is not None", "words": "x", "was": "y", "looked_at": "x", "indent": "    "}
        saved = with_check(step(), {**parts, part: CREATES})
        saved.write(tmp_path / "file.fg")
        with pytest.raises(fg.UntrustedArtifact):
            fg.load(tmp_path / "file.fg")


CHECKS = [
    {"condition": "args is None", "words": f"x\n    {CREATES}", "indent": "    "},
    {"condition": f"args is None: {CREATES}\n    if args is None", "indent": "    "},
    {"condition": "args is None", "indent": f"    {CREATES}\n    "},
    {"condition": "args is None", "words": "x", "was": 3, "indent": "    "},
    {"condition": "args is None", "words": ["x"], "indent": "    "},
    {"condition": "args is None", "looked_at": "1 +", "indent": "    "},
    {"condition": "args is None", "looked_at": "args", "about": ["x"], "indent": "    "},
    {"condition": "args is None"},
    {"words": "x"},
    {"condition": "args is None", "other": "x"},
    ["args is None"],
    3,
]


@pytest.mark.parametrize("parts", CHECKS, ids=range(len(CHECKS)))
def test_a_check_is_one_line_of_text(parts: dict[str, Any], tmp_path: Path):
    assert attempt(with_check(step(), parts), tmp_path / "file.fg") == "CorruptArtifact"


KNOWN = [
    "builtins.exec", "builtins.eval", "builtins.open", "builtins.__import__", "builtins.compile", "builtins.getattr",
    "builtins.setattr", "builtins.type", "builtins.vars", "builtins.globals", "os.system", "subprocess.run",
    "torch.ops.load_library", "torch.jit.load", "torch.load", "torch.save", "torch.hub.load", "torch.from_file",
    "torch._C._VariableFunctions.from_file", "torch.utils.cpp_extension.load_inline", "torch.serialization.load",
    "torch.Tensor.numpy", "torch.Tensor.__reduce_ex__", "torch.Tensor.set_", "foregrad.demo", "foregrad.cli.main",
    "foregrad.core.generated.load_source", "foregrad.torch_private.serialization.load_extension", "operator.attrgetter",
    "operator.methodcaller", "math", "torch", "torch.ops.aten.add.default.__class__", "foregrad.core.errors.sys",
    "torch._C._VariableFunctions", "torch.Tensor.__class__", "", ".", "..", "builtins", 5, None, ["os"],
]  # fmt: skip


@pytest.mark.parametrize("name", KNOWN, ids=str)
def test_only_listed_functions_are_found_by_name(name: Any, tmp_path: Path):
    hostile = with_name(step(), {"is": "known", "name": name}, line=f"hostile({CREATES!r})")
    assert attempt(hostile, tmp_path / "file.fg") in ("UntrustedArtifact", "CorruptArtifact", "loaded, and fails")


def here(place: int) -> dict[str, Any]:
    return {"is": "object", "at": place}


NOTHING, NO_KEYS = {"is": "tuple", "items": []}, {"is": "dict", "items": []}
IMPORTS = (
    '{"type": "collections.defaultdict", "context": {"default_factory_module": "os", "default_factory_name": "system", '
    '"dict_context": []}, "children_spec": []}'
)
ENUM = (
    '{"type": "builtins.dict", "context": "[{\\"__enum__\\": true, \\"fqn\\": \\"os:system\\"}]", "children_spec": []}'
)
COMMAND = {"is": "tuple", "items": [f"touch {CANARY}"]}
OBJECTS: dict[str, list[Any]] = {
    "a method of a class": [{"is": "known", "name": "torch.Tensor"}, {"is": "method", "of": here(0), "name": "mro"}],
    "a method of a function": [
        {"is": "known", "name": "torch.Tensor.item"},
        {"is": "method", "of": here(0), "name": "__call__"},
    ],
    "an error that is none": [
        {"is": "known", "name": "os.system"},
        {"is": "error", "type": here(0), "arguments": COMMAND},
    ],
    "a module as an error": [{"is": "known", "name": "torch"}, {"is": "error", "type": here(0), "arguments": NOTHING}],
    "an op that reads files": [{"is": "op", "name": "aten::from_file.default"}],
    "an op that writes files": [{"is": "op", "name": "aten::save.default"}],
    "an op of another namespace": [{"is": "op", "name": "profiler::_record_function_enter_new.default"}],
    "an attribute of an op": [{"is": "op", "name": "aten::add.__class__"}],
    "a namespace of ops": [{"is": "ops", "name": "load_library"}],
    "a kind that reads Python": [{"is": "made", "kind": "PythonReads", "parts": {}}],
    "a kind that there is not": [{"is": "made", "kind": "os.system", "parts": {"command": f"touch {CANARY}"}}],
    "a container that imports": [{"is": "structure", "text": f"[1, {IMPORTS}]"}],
    "a context that imports": [{"is": "structure", "text": f"[1, {ENUM}]"}],
    "a variable of the function": [{"is": "globals"}],
    "attributes of a module": [{"is": "attributes", "of": {"is": "module", "of": 0, "path": ""}}],
    "a module that is called": [{"is": "module", "of": 0, "path": ""}],
    "an object inside itself": [{"is": "made", "kind": "FromList", "parts": {"run": here(0)}}],
    "a kind as an attribute": [{"is": "init__"}],
    "no kind": [{}],
}


@pytest.mark.parametrize("what", OBJECTS)
def test_only_listed_objects_are_made(what: str, tmp_path: Path):
    became = attempt(with_name(step(), *OBJECTS[what]), tmp_path / "file.fg")
    assert became in ("UntrustedArtifact", "CorruptArtifact", "StaleArtifact"), became


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A shared library whose constructor creates the canary."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "x.c").write_text(
        f'#include <fcntl.h>\n__attribute__((constructor)) static void f(void) {{ open("{CANARY}", O_CREAT, 0600); }}'
    )
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "x.so", folder / "x.c"], check=True)
    return (folder / "x.so").read_bytes()


@pytest.mark.parametrize("kind", ["kernel", "library"])
def test_libraries_are_not_loaded(kind: str, library: bytes, tmp_path: Path):
    described = {
        "is": kind, "code": "code/hostile", "name": "kernel_0", "ops": None,
        "places": {"is": "tuple", "items": []}, "constants": {"is": "list", "items": []},
    }  # fmt: skip
    saved = with_name(step(), described)
    saved = Saved(saved.about, {**saved.blobs, "code/hostile": library}, saved.call)
    assert attempt(saved, tmp_path / "file.fg") == "UntrustedArtifact"


GRAPHS = [
    ["placeholder", f"x: {CREATES}", "x", NOTHING, NO_KEYS, {}],
    ["placeholder", "x", f"x={CREATES}", NOTHING, NO_KEYS, {}],
    ["get_attr", "x", "__class__.__init__", NOTHING, NO_KEYS, {}],
    ["call_method", "x", "numpy", NOTHING, NO_KEYS, {}],
    ["call_module", "x", "os", NOTHING, NO_KEYS, {}],
    ["call_function", "x", here(0), NOTHING, {"is": "dict", "items": [[f"a={CREATES}, b", 1]]}, {}],
    ["call_function", "x", here(0), {"is": "tuple", "items": [f"'); {CREATES}; ('"]}, NO_KEYS, {}],
]


@pytest.mark.parametrize("node", GRAPHS, ids=range(len(GRAPHS)))
def test_graphs_hold_names_and_listed_ops_only(node: Any, tmp_path: Path):
    graph = {"is": "graph", "nodes": [node], "constants": {"is": "dict", "items": []}}
    guarded = {
        "is": "made", "kind": "Guarded",
        "parts": {"run": None, "graph": {"is": "object", "at": 1}, "name": "forward", "layouts": [], "cuts": None},
    }  # fmt: skip
    became = attempt(with_name(step(), {"is": "op", "name": "aten::add.Tensor"}, graph, guarded), tmp_path / "file.fg")
    assert became in ("UntrustedArtifact", "CorruptArtifact"), became


def test_the_attacks_are_real(tmp_path: Path):
    """The same file runs its code where its key is trusted: what is tested above is not that the attack is none."""
    hostile = with_text(step(), CREATES)
    path = hostile.write(tmp_path / "file.fg", STRANGER)
    lines = ["import foregrad as fg, torch", f"step = fg.load({str(path)!r})"]
    lines.append("step(torch.ones(4, 3), torch.zeros(4, dtype=torch.int64))")
    with pytest.raises(fg.UntrustedArtifact, match="a key that you do not trust"):
        fg.load(path)
    keyring.add("stranger", f"hmac-sha256:{STRANGER.secret.hex()}")
    try:
        subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, check=False)
        assert CANARY.exists()
        assert "signed by stranger" in fg.load(path).how
    finally:
        keyring.remove("stranger")
        CANARY.unlink(missing_ok=True)
    with pytest.raises(fg.UntrustedArtifact):
        fg.load(path)


def test_what_was_changed_after_it_was_signed_is_refused(tmp_path: Path):
    key = keyring.signer()
    assert key is not None
    path = step().write(tmp_path / "file.fg", key)
    assert "your own key" in fg.load(path).how
    data = bytearray(path.read_bytes())
    place = data.index(b'"kind":"step"')
    data[place : place + 13] = b'"kind":"stop"'
    length = int.from_bytes(data[16:24], "little")
    data[32:64] = hashlib.sha256(data[64 : 64 + length]).digest()
    path.write_bytes(data)
    with pytest.raises(fg.UntrustedArtifact, match="did not sign these bytes"):
        fg.load(path)
