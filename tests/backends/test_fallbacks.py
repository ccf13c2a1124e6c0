"""What is not compiled is said: in a warning, by `fg.explain`, in the regions; and not kept as if it were compiled."""

import warnings

import pytest
import torch

import foregrad as fg
from foregrad.backends import choose, inductor
from foregrad.backends import compiling as compilers

pytestmark = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")
X = torch.randn(4, 4)


def turned(x):
    return (torch.view_as_complex(x.view(4, 2, 2)) * 1j).abs() + x.view(4, 2, 2)[..., 0].sin()


def compiled_quietly(function, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", fg.FallbackWarning)
        compiled = fg.compile(function, **{"backend": "inductor", "cache": False, "progress": False, **options})
        torch.testing.assert_close(compiled(X), function(X))
    return compiled


def test_an_op_that_no_loop_can_stand_for_is_named_with_its_reason_and_line():
    compiled = fg.compile(turned, backend="inductor", cache=False, progress=False)
    with pytest.warns(fg.FallbackWarning) as said:
        compiled(X)
    [one] = said
    assert "a part of turned is not compiled" in str(one.message)
    assert "aten.mul.Tensor runs by itself: complex numbers, first at" in str(one.message)
    assert f"test_fallbacks.py:{turned.__code__.co_firstlineno + 1} in turned" in str(one.message)
    assert one.filename == __file__
    assert "complex numbers" in str(fg.explain(compiled))
    assert "complex numbers" in str(compiled.regions[0])
    assert fg.explain(compiled).as_json()["captures"][0]["fallbacks"]


def test_a_program_that_is_found_says_the_same(tmp_path):
    def named(x):
        return turned(x)

    first = compiled_quietly(named, cache=fg.Cache(tmp_path))
    again = compiled_quietly(named, cache=fg.Cache(tmp_path))
    assert again.captures[0].origin.how == "found without tracing"
    assert fg.explain(again).explained[0].fallbacks == fg.explain(first).explained[0].fallbacks != ()
    assert str(again.regions[0]) == str(first.regions[0])


def test_a_kernel_that_any_compiler_calls_by_name_is_listed_and_not_warned_of():
    compiled = fg.compile(lambda x: torch.fft.rfft(x).abs() + 1, backend="inductor", cache=False, progress=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled(X)
    assert "aten._fft_r2c runs by itself: a Fourier transform" in str(compiled.regions[0])


@pytest.mark.parametrize("where", ["lower", "compile_with_inductor", "build_kernels"])
def test_what_a_compiler_failed_at_is_said_and_tried_again_by_the_next_process(where, tmp_path, monkeypatch):
    def f(x):
        return (x @ x).sin() + 1

    def fails(*args, **kwargs):
        raise AttributeError(f"no {where}")

    cache = fg.Cache(tmp_path)
    with monkeypatch.context() as broken:
        broken.setattr(inductor, where, fails)
        compiled = fg.compile(f, backend=compilers.Inductor(), cache=cache, progress=False)
        with pytest.warns(fg.FallbackWarning, match=f"Inductor could not compile forward: .*no {where}"):
            torch.testing.assert_close(compiled(X), f(X))
    assert f"no {where}" in str(fg.explain(compiled))
    assert "it cannot be kept: forward: Inductor could not compile forward" in str(compiled.origin)
    assert not cache.entries()
    again = fg.compile(f, backend=compilers.Inductor(), cache=cache, progress=False)
    torch.testing.assert_close(again(X), f(X))
    assert again.captures[0].origin.how == "captured"
    assert not fg.explain(again).explained[0].fallbacks


def test_a_backward_that_falls_back_later_is_said_too():
    def twice(x):
        return x.sin(), torch.view_as_complex(x.view(4, 2, 2)).abs()

    x, y = X.clone().requires_grad_(), X.clone().requires_grad_()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _, result = fg.compile(twice, backend="inductor", cache=False, progress=False)(x)
        result.sum().backward()
    assert any("backward: aten.sgn" in str(one.message) for one in said)
    twice(y)[1].sum().backward()
    torch.testing.assert_close(x.grad, y.grad)
