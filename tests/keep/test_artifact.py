"""Artifacts: what is saved in one process does in another what it did, without tracing and, if asked, without code."""

import copy
import json
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foregrad as fg
from foregrad.backends import toolchain
from foregrad.cache.format.container import read_header, unpack
from foregrad.cache.serialize.tensors import strided, tensors_from_bytes, tensors_to_bytes

needs_compiler = pytest.mark.skipif(toolchain.compiler() is None, reason="needs a C++ compiler")
BACKENDS = [
    "eager",
    pytest.param("inductor", marks=needs_compiler),
    pytest.param("aoti", marks=[needs_compiler, pytest.mark.slow]),
]


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.2), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3))


def training(model: nn.Module, kind: type = torch.optim.AdamW, **options):
    optimizer = kind(model.parameters(), **{"lr": 1e-2, **options})

    def train(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train, optimizer


def batch() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)


def run(step, num_steps: int = 3) -> list[Tensor]:
    torch.manual_seed(1)
    return [step(*batch()) for _ in range(num_steps)]


def saved_step(path: Path, backend: str = "eager", **options):
    model = net()
    train, optimizer = training(model, **options)
    step = fg.step(model, optimizer, backend=backend, progress=False)(train)
    run(step)
    step.save(path)
    return step, model, optimizer


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_goes_on_from_a_file_as_it_went_on_itself(backend: str, tmp_path: Path):
    step, model, _ = saved_step(tmp_path / "step.fg", backend)
    expected = run(step)
    loaded = fg.load(tmp_path / "step.fg")
    assert [a.item() for a in run(loaded)] == [e.item() for e in expected]
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    theirs = loaded.state[1]
    assert [float(s["step"]) for s in theirs.state.values()] == [6.0] * len(theirs.state)
    assert all(
        torch.equal(a.grad, b.grad) for a, b in zip(loaded.state[0].parameters(), model.parameters(), strict=True)
    )


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_trains_the_state_that_it_is_given(backend: str, tmp_path: Path):
    step, model, optimizer = saved_step(tmp_path / "step.fg", backend)
    twin = net()
    _, other = training(twin)
    twin.load_state_dict(model.state_dict())
    other.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    expected = run(step)
    loaded = fg.load(tmp_path / "step.fg", state=(twin, other))
    assert [a.item() for a in run(loaded)] == [e.item() for e in expected]
    for a, b in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(optimizer.state.values(), other.state.values(), strict=True):
        assert all(torch.equal(a[key], b[key]) for key in a)


def test_a_fresh_optimizer_gets_its_state_as_in_eager(tmp_path: Path):
    saved_step(tmp_path / "step.fg")
    twin, reference = net(), net()
    _, other = training(twin)
    loaded = fg.load(tmp_path / "step.fg", state=(twin, other))
    eager, _ = training(reference)
    assert [a.item() for a in run(loaded)] == [e.item() for e in run(eager)]


def scheduled():
    model = net()
    train, optimizer = training(model)
    return model, train, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1)


def test_a_scheduler_beside_a_loaded_step_knows_that_it_steps(tmp_path: Path):
    model, train, optimizer, _ = scheduled()
    step = fg.step(model, optimizer, backend="eager")(train)
    run(step)
    step.save(tmp_path / "step.fg")
    model, _, optimizer, scheduler = scheduled()
    loaded = fg.load(tmp_path / "step.fg", state=(model, optimizer))
    run(loaded)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler.step()


def test_learning_rates_are_read_at_each_call(tmp_path: Path):
    step, _, optimizer = saved_step(tmp_path / "step.fg")
    loaded = fg.load(tmp_path / "step.fg")
    for groups in (optimizer.param_groups, loaded.state[1].param_groups):
        groups[0]["lr"] = 0.3
    assert [a.item() for a in run(loaded)] == [e.item() for e in run(step)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_code_of_the_model_is_needed(backend: str, tmp_path: Path):
    step, *_ = saved_step(tmp_path / "step.fg", backend)
    script = textwrap.dedent(
        """
        import sys, torch, foregrad as fg
        step = fg.load(sys.argv[1])
        generator = torch.Generator().manual_seed(3)
        x, y = torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)
        torch.manual_seed(1)
        print([step(x, y).item() for _ in range(3)])
        unwanted = ("torch._inductor", "torch._dynamo", "foregrad.record.recorder")
        assert not any(name.startswith(unwanted) for name in sys.modules)
        """
    )
    command = [sys.executable, "-c", script, str(tmp_path / "step.fg")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert eval(done.stdout) == [e.item() for e in run(step)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_module_and_its_backward(backend: str, tmp_path: Path):
    model = net()
    compiled = fg.compile(model, backend=backend, progress=False)
    x, y = batch()
    F.cross_entropy(compiled(x), y).backward()
    compiled.save(tmp_path / "model.fg")
    loaded = fg.load(tmp_path / "model.fg")
    for one in (model, loaded.state[0]):
        one.zero_grad()
    torch.manual_seed(2)
    out = compiled(x)
    out.backward(torch.ones_like(out))
    torch.manual_seed(2)
    again = loaded(x)
    again.backward(torch.ones_like(again))
    assert torch.equal(out, again)
    for a, b in zip(model.parameters(), loaded.state[0].parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    loaded(x).sum().backward()  # a tangent of another layout


def test_a_function_for_inference(tmp_path: Path):
    model = net().eval()
    compiled = fg.compile(model, backend="eager")
    x, _ = batch()
    with torch.no_grad():
        expected = compiled(x)
        compiled.save(tmp_path / "model.fg")
        loaded = fg.load(tmp_path / "model.fg")
        assert torch.equal(loaded(x), expected)
    with pytest.raises(fg.GuardError, match="grad mode was False, is True"):
        loaded(x)


def test_a_plain_function(tmp_path: Path):
    def f(x: Tensor, scale: float) -> dict[str, Tensor]:
        return {"y": x.sin() * scale, "z": x.t()}

    compiled = fg.compile(f, backend="eager")
    x = torch.randn(3, 4, requires_grad=True)
    expected = compiled(x, 2.0)
    compiled.save(tmp_path / "f.fg")
    loaded = fg.load(tmp_path / "f.fg")
    found = loaded(x, 2.0)
    assert torch.equal(found["y"], expected["y"])
    assert found["z"]._base is x
    with pytest.raises(fg.GuardError, match="made for other calls"):
        loaded(x, 3.0)


def test_what_needs_the_recording_is_refused_in_words(tmp_path: Path):
    compiled = fg.compile(lambda x: (x.sin(), x.cos()), backend="eager")
    x = torch.randn(3, requires_grad=True)
    compiled(x)
    compiled.save(tmp_path / "f.fg")
    loaded = fg.load(tmp_path / "f.fg")
    a, b = loaded(x)
    (a + b).sum().backward()
    a, _ = loaded(x)
    with pytest.raises(fg.BackwardError, match="loaded from a file"):
        a.sum().backward()
    a, b = loaded(x)
    with pytest.raises(fg.BackwardError, match="loaded from a file"):
        torch.autograd.grad((a + b).sum(), x, create_graph=True)


def test_all_that_differs_about_the_state_is_listed(tmp_path: Path):
    saved_step(tmp_path / "step.fg")
    other = nn.Sequential(nn.Linear(6, 17), nn.Dropout(0.2), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 3, bias=False))
    _, optimizer = training(other)
    with pytest.raises(fg.StaleArtifact) as caught:
        fg.load(tmp_path / "step.fg", state=(other, optimizer))
    message = str(caught.value)
    assert "0.weight: f32[16, 6], as 0.0.weight in the file, f32[17, 6]" in message
    assert "4.bias: f32[3], as 0.4.bias in the file, None" in message
    with pytest.raises(fg.StaleArtifact, match="made for 2 states, 1 are given"):
        fg.load(tmp_path / "step.fg", state=other)


def test_another_torch_or_machine_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saved_step(tmp_path / "step.fg")
    monkeypatch.setattr(torch, "__version__", "2.99.0")
    with pytest.raises(fg.StaleArtifact, match=r"it needs torch .*, and here is 2\.99\.0"):
        fg.load(tmp_path / "step.fg")


def test_another_number_of_threads_is_fine(tmp_path: Path):
    saved_step(tmp_path / "step.fg")
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run(fg.load(tmp_path / "step.fg"))
    finally:
        torch.set_num_threads(threads)


def test_a_call_that_it_was_not_made_for_is_refused_with_the_reason(tmp_path: Path):
    saved_step(tmp_path / "step.fg")
    loaded = fg.load(tmp_path / "step.fg")
    before = {name: value.clone() for name, value in loaded.state_dict().items()}
    with pytest.raises(fg.GuardError, match=r"program 2: x was f32\[8, 6\] of type Tensor, is f32\[9, 6\]"):
        loaded(torch.randn(9, 6), torch.zeros(9, dtype=torch.int64))
    assert all(torch.equal(value, before[name]) for name, value in loaded.state_dict().items())


def test_a_module_in_another_mode_is_refused(tmp_path: Path):
    saved_step(tmp_path / "step.fg")
    twin = net()
    _, other = training(twin)
    loaded = fg.load(tmp_path / "step.fg", state=(twin, other))
    twin.eval()
    with pytest.raises(fg.GuardError, match="Sequential was training=True, is training=False"):
        run(loaded)


def scaled(x: Tensor, scale: float, options: dict[str, int]) -> Tensor:
    return x * scale + sum(options.values())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"scale": 3.0}, "scale was 2.0, is 3.0"),
        ({"scale": 2}, "scale was 2.0, is 2"),
        ({"options": {"a\nb": 4}}, "options.a b was 1, is 4"),
        ({"options": {"b": 1}}, r"options was {'a\nb': 1}, is {'b': 1}"),
        ({"x": torch.ones(2, dtype=torch.float64)}, "x was f32[2] of type Tensor, is f64[2] of type Tensor"),
        ({"x": torch.ones(2, requires_grad=True)}, "is f32[2] of type Tensor that needs a gradient"),
        ({"more": 1}, "number of arguments was 3, is 4"),
    ],
)
def test_what_a_call_was_not_made_for_is_said_as_a_capture_says_it(change: dict, words: str, tmp_path: Path):
    arguments = {"x": torch.ones(2), "scale": 2.0, "options": {"a\nb": 1}}
    compiled = fg.compile(scaled, backend="eager", dynamic=False)
    compiled(**arguments)
    compiled.save(tmp_path / "scaled.fg")
    loaded = fg.load(tmp_path / "scaled.fg")
    assert torch.equal(loaded(**arguments), scaled(**arguments))
    with pytest.raises(fg.GuardError) as caught:
        loaded(**{**arguments, **change})
    assert words in str(caught.value)
    with pytest.raises(fg.GuardError, match="grad mode was True, is False"), torch.no_grad():
        loaded(**arguments)


def test_a_loaded_step_says_where_it_comes_from(tmp_path: Path):
    file = tmp_path / "step.fg"
    step, *_ = saved_step(file)
    told = fg.explain(fg.load(file))
    assert str(told).splitlines()[0] == f"{step.name}: a step of {len(step.captures)} programs, loaded from {file}"
    assert "works on the weights in the file" in str(told)
    assert f"torch {torch.__version__}" in str(told)
    assert [one.reason for one in told.captures] == [one.reason for one in step.captures]
    assert json.loads(json.dumps(told.as_json()))["source"] == str(file)
    given = fg.explain(fg.load(file, state=step.state))
    assert "works on what it was given: Sequential, AdamW" in str(given)
    with pytest.raises(TypeError, match=r"fg\.load"):
        fg.explain(torch.ones(1))


def test_tied_weights_stay_tied(tmp_path: Path):
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.into, self.out = nn.Linear(6, 6), nn.Linear(6, 6)
            self.out.weight = self.into.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.out(self.into(x).relu())[:, :3]

    model = Tied()
    train, optimizer = training(model)
    step = fg.step(model, optimizer, backend="eager")(train)
    run(step)
    step.save(tmp_path / "step.fg")
    expected = run(step)
    loaded = fg.load(tmp_path / "step.fg")
    assert loaded.state[0].into.weight is loaded.state[0].out.weight
    assert [a.item() for a in run(loaded)] == [e.item() for e in expected]
    untied = Tied()
    untied.out.weight = nn.Parameter(untied.into.weight.detach().clone())
    with pytest.raises(fg.StaleArtifact, match=r"out\.weight"):
        fg.load(tmp_path / "step.fg", state=(untied, training(untied)[1]))


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.RMSprop, torch.optim.Adafactor])
def test_other_optimizers(kind: type, tmp_path: Path):
    step, *_ = saved_step(tmp_path / "step.fg", kind=kind)
    expected = run(step)
    assert [a.item() for a in run(fg.load(tmp_path / "step.fg"))] == [e.item() for e in expected]


def test_what_no_file_can_hold_is_named(tmp_path: Path):
    scale = torch.ones(3)
    compiled = fg.compile(lambda x: x * scale, backend="eager")
    compiled(torch.randn(3))
    with pytest.raises(fg.CannotKeep, match="a variable around the function"):
        compiled.save(tmp_path / "f.fg")
    with pytest.raises(fg.CannotKeep, match="captured no program yet"):
        fg.compile(lambda x: x).save(tmp_path / "f.fg")
    assert not (tmp_path / "f.fg").exists()


def test_the_header_tells_all_without_the_code(tmp_path: Path):
    step, *_ = saved_step(tmp_path / "step.fg")
    about = read_header(tmp_path / "step.fg").about
    assert about["kind"] == "step"
    assert about["captures"][1]["program"] == str(step.captures[1])
    assert about["captures"][1]["reason"] == step.captures[1].reason
    assert {"role": "param", "name": "0.weight", "spec": "f32[16, 6]"} in about["captures"][1]["signature"]["inputs"]
    assert about["needs"]["torch"] == torch.__version__
    loaded = fg.load(tmp_path / "step.fg")
    assert str(loaded.captures[1]) == str(step.captures[1])
    assert str(loaded.captures[1].timings) == str(step.captures[1].timings)


def test_without_weights(tmp_path: Path):
    model = net()
    train, optimizer = training(model)
    step = fg.step(model, optimizer, backend="eager")(train)
    run(step)
    step.save(tmp_path / "step.fg", weights=False)
    assert len(unpack(tmp_path / "step.fg").blob("state.safetensors")) < 100
    with pytest.raises(fg.StaleArtifact, match="without the weights"):
        fg.load(tmp_path / "step.fg")
    fg.load(tmp_path / "step.fg", state=(model, optimizer))


@pytest.mark.parametrize("blob", ["objects.json", "state.safetensors"])
def test_a_damaged_file_is_refused(tmp_path: Path, blob):
    saved_step(tmp_path / "step.fg")
    whole = bytes(unpack(tmp_path / "step.fg").blob(blob))
    data = bytearray((tmp_path / "step.fg").read_bytes())
    data[data.index(whole) + len(whole) // 2] ^= 1
    (tmp_path / "step.fg").write_bytes(data)
    with pytest.raises(fg.CorruptArtifact):
        fg.load(tmp_path / "step.fg")


def test_an_op_that_is_not_registered_is_named(tmp_path: Path):
    script = textwrap.dedent(
        """
        import sys, torch, foregrad as fg
        if sys.argv[2] == "save":
            @torch.library.custom_op("artifacts::twice", mutates_args=())
            def twice(x: torch.Tensor) -> torch.Tensor:
                return x * 2
            twice.register_fake(torch.empty_like)
            compiled = fg.compile(lambda x: twice(x).sin(), backend="eager")
            compiled(torch.ones(3))
            compiled.save(sys.argv[1])
        else:
            try:
                fg.load(sys.argv[1])
            except fg.StaleArtifact as error:
                assert "there is no op artifacts::twice" in str(error), error
            else:
                raise AssertionError
        """
    )
    for what in ("save", "load"):
        command = [sys.executable, "-c", script, str(tmp_path / "f.fg"), what]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_weights_of_a_file_are_safetensors_and_lie_as_torch_lays_its_own(tmp_path):
    from safetensors.torch import load as read

    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 700), nn.BatchNorm1d(700))
    model.register_buffer("columns", torch.arange(600.0).view(20, 30).t())
    kinds = (torch.bfloat16, torch.int64, torch.bool, torch.float8_e4m3fn, torch.complex64)
    for number, dtype in enumerate(kinds):
        model.register_buffer(f"of_kind_{number}", torch.arange(7).to(dtype))
    data = tensors_to_bytes(model.state_dict())
    found, ours = read(data), tensors_from_bytes(memoryview(bytearray(data)))
    for name, value in model.state_dict().items():
        for one in (found[name], strided(ours[name], value.stride())):
            assert one.dtype == value.dtype
            assert torch.equal(one.flatten().view(torch.uint8), value.flatten().view(torch.uint8))
        assert strided(ours[name], value.stride()).stride() == value.stride()
    start = 8 + int.from_bytes(data[:8], "little")
    assert start % 64 == 0
