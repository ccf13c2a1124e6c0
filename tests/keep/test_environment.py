"""Surroundings: each ingredient changes the key by itself, and is named."""

import decimal
import logging
import platform
from pathlib import Path

import numpy
import pytest
import torch
import torch._inductor.config

from foregrad.backends.compiling import AOTI, Inductor
from foregrad.backends.eager import compile_graph
from foregrad.cache.key import environment, installed
from foregrad.cache.key.environment import environment_of, environment_of_sources
from foregrad.cache.key.ingredients import differences
from foregrad.runtime.options import Options

INDUCTOR = Options(Inductor())


def key(options=INDUCTOR, **extra):
    environment.software.cache_clear()
    environment.machine.cache_clear()
    return environment_of_sources(options, **extra).key


def only_difference(old, new):
    (found,) = differences(old, new)
    return found


@pytest.fixture(autouse=True)
def _forget():
    yield
    environment.software.cache_clear()
    environment.machine.cache_clear()


def test_the_same_surroundings_give_the_same_key():
    assert key().digest == key().digest


@pytest.mark.parametrize(
    ("where", "name", "value", "ingredient"),
    [
        (torch, "__version__", "2.99.0", "torch"),
        (torch.version, "git_version", "abcdef", "torch"),
        (torch.__config__, "show", lambda: "built otherwise", "torch"),
        (platform, "python_version", lambda: "3.99.0", "python"),
        (environment, "own_digest", lambda: "foregrad edited", "foregrad"),
        (environment, "version_text", lambda path: "g++ 99.1", "compiler"),
        (environment, "_processor", lambda: ["sse"], "instruction set"),
        (torch.backends.cpu, "get_cpu_capability", lambda: "OTHER", "instruction set"),
    ],
)
def test_software_and_machine(monkeypatch, where, name, value, ingredient):
    before = key()
    monkeypatch.setattr(where, name, value)
    assert only_difference(before, key()).name == ingredient


def test_foregrad_is_known_by_the_bytes_of_its_files(monkeypatch, tmp_path):
    (tmp_path / "one.py").write_text("a = 1\n")
    monkeypatch.setattr(environment, "FOLDER", f"{tmp_path}/")
    before = environment.own_digest.__wrapped__()
    (tmp_path / "one.py").write_text("a = 2\n")
    assert environment.own_digest.__wrapped__() != before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (torch.no_grad, "grad_mode: False"),
        (torch.inference_mode, "inference_mode: True"),
        (lambda: torch.autocast("cpu", torch.bfloat16), "autocast_state"),
        (lambda: torch.device("meta"), "default_device: meta"),
        (lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH), "flash_attention: False"),
    ],
)
def test_settings_of_torch(change, words):
    before = key()
    with change():
        found = only_difference(before, key())
    assert found.name == "settings of torch"
    assert words in str(found)


def test_settings_of_torch_that_stay():
    before = key()
    try:
        torch.set_default_dtype(torch.float64)
        assert "default_dtype" in str(only_difference(before, key()))
    finally:
        torch.set_default_dtype(torch.float32)
    try:
        torch.use_deterministic_algorithms(True)
        assert "deterministic_algorithms: True" in str(only_difference(before, key()))
    finally:
        torch.use_deterministic_algorithms(False)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert f"num_threads: {threads + 1}" in str(only_difference(before, key()))
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("other", [Inductor(rng="fast"), Inductor(regions="off"), Inductor(winograd=False), AOTI()])
def test_the_backend_and_its_options(other):
    found = only_difference(key(), key(Options(other)))
    assert found.name == "backend"
    assert found.old == "inductor rng='eager' regions='auto' winograd=True"


def test_the_machine_is_nothing_to_the_eager_backend():
    names = key(Options(compile_graph)).by_name
    assert names["backend"].description == "eager"
    assert "compiler" not in names
    assert "instruction set" not in names


def test_options():
    found = only_difference(key(donate=True), key(donate=False))
    assert str(found) == "option donate: True -> False"


def made_pass(number):
    space = {"__name__": "passes"}
    exec(f"def double(program):\n    return program or {number}", space)
    return space["double"]


def test_the_code_of_a_pass():
    old, new = (key(Options(Inductor(), (made_pass(number),))) for number in (1, 2))
    assert only_difference(old, new).name == "options: function passes.double"
    assert key(Options(Inductor(), (made_pass(1),))).digest == old.digest


def test_the_order_of_passes():
    one, two = made_pass(1), made_pass(2)
    assert key(Options(Inductor(), (one, two))).digest != key(Options(Inductor(), (two, one))).digest


def test_the_code_of_a_backend_of_the_users():
    old, new = (key(Options(made_pass(number))) for number in (1, 2))
    assert only_difference(old, new).name == "options: function passes.double"


def test_a_pass_that_reads_a_file_makes_the_key_unsure():
    def reads(program):
        return open(program)

    (reason,) = environment_of(Options(Inductor(), (reads,))).unsure
    assert "uses open, which reads files" in reason


def test_decompositions_of_the_users(monkeypatch):
    from torch._decomp import decomposition_table

    before = key()
    monkeypatch.setitem(decomposition_table, torch.ops.aten.relu.default, made_pass(1))
    found = differences(before, key())
    assert [one.name for one in found] == [
        "options: decomposition of aten.relu.default",
        "options: function passes.double",
    ]


def test_nothing_names_a_folder():
    text = "\n".join(one.description for one in key().ingredients)
    assert str(Path.home()) not in text
    assert str(Path(__file__).parents[2]) not in text


def a_distribution(folder, name, digest):
    """A distribution as pip leaves it, with one file."""
    about = folder / f"{name}-1.0.dist-info"
    about.mkdir(exist_ok=True)
    record = (
        f"{name}/__init__.py,sha256={digest},10\n{name}-1.0.dist-info/METADATA,sha256=abc,1\n../../bin/x,sha256=d,1\n"
    )
    (about / "RECORD").write_text(record)


def test_an_upgrade_of_any_installed_distribution_changes_the_key(monkeypatch, tmp_path):
    """Also of one that no code of the user's names: another library may use it, or share a namespace with it."""
    monkeypatch.syspath_prepend(tmp_path)
    a_distribution(tmp_path, "helper", "first")
    keys = []
    for digest in ("first", "second"):
        a_distribution(tmp_path, "helper", digest)
        installed._distributions.cache_clear()
        keys.append(key())
    installed._distributions.cache_clear()
    assert only_difference(*keys).name == "installed distributions"


def test_what_only_the_python_of_a_capture_meets_is_in_no_key_of_a_program():
    """After an upgrade the function is traced once more, and its compiled code found."""
    more = {one.name for one in key().ingredients} - {one.name for one in environment_of(INDUCTOR).key.ingredients}
    assert {"installed distributions", "settings of Python", "settings of NumPy"} <= more
    assert all(name.startswith(("installed", "settings of", "code of ")) for name in more)


SETTINGS = {
    "settings of NumPy": lambda patch: patch.setattr(numpy, "geterr", lambda: {"divide": "raise"}),
    "settings of Python": lambda patch: patch.setattr(logging.getLogger("users"), "level", logging.DEBUG),
    "environment of libraries": lambda patch: patch.setenv("TORCH_NEW_SWITCH", "1"),
}


@pytest.mark.parametrize("ingredient", SETTINGS)
def test_settings_of_the_process_change_the_key(monkeypatch, ingredient):
    before = key()
    SETTINGS[ingredient](monkeypatch)
    assert only_difference(before, key()).name == ingredient


def test_a_setting_of_inductor_changes_the_key_until_it_is_put_back():
    before = key()
    with torch._inductor.config.patch(max_autotune=True):
        assert only_difference(before, key()).name == "settings of torch"
    assert key().digest == before.digest


def test_the_decimal_context_changes_the_key():
    before = key()
    assert decimal.Decimal(1) / 3  # sets a flag, which changes nothing
    assert key().digest == before.digest
    with decimal.localcontext() as context:
        context.prec = 5
        assert only_difference(before, key()).name == "settings of Python"


def test_what_aot_inductor_notes_down_in_its_settings_is_in_no_key():
    before = key()
    with torch._inductor.config.patch({"aot_inductor.metadata": {"AOTI_DEVICE_KEY": "cpu"}}):
        assert key().digest == before.digest
