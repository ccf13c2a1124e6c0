"""How a compiled call stands in autograd: modes, hooks, graphs kept and freed (AG-1 to AG-12)."""

import gc
import weakref

import pytest
import torch
from torch.autograd.graph import register_multi_grad_hook, save_on_cpu, saved_tensors_hooks

import foregrad as fg
from tests.compare import Gradients, also_compiled, assert_same, compiled, grads_of, leaf, same_as_eager

# AG-1: the joint graph


def test_AG_1_the_joint_graph_runs_by_hand_and_gives_outputs_and_gradients():
    x, w = leaf(3), leaf(3)
    program = fg.capture(lambda x, w: (x * w).sin(), x, w)
    tangent = torch.randn(3)
    values = {"x": x.detach(), "w": w.detach()}
    found = program.graph(*[values.get(item.name, tangent) for item in program.signature.inputs])
    out = (x * w).sin()
    expected = {"output": [out], "grad": list(torch.autograd.grad(out, (x, w), tangent))}
    for item, value in zip(program.signature.outputs, found, strict=True):
        assert torch.equal(value, expected[item.role].pop(0)), item


def test_AG_1_inputs_and_outputs_have_roles_and_the_users_names():
    program = fg.capture(lambda x, w: (x * w).sin(), leaf(3), leaf(3))
    roles = [(item.role, item.name) for item in program.signature.inputs]
    assert roles[:2] == [("input", "x"), ("input", "w")]
    assert [role for role, _ in roles[2:]] == ["tangent"]
    grads = [item.name for item in program.signature.outputs if item.role == "grad"]
    assert len(grads) == 2
    assert "x" in grads[0]
    assert "w" in grads[1]


def test_AG_1_the_listing_uses_no_numbered_names():
    text = str(fg.capture(lambda x, w: (x * w).sin(), leaf(3), leaf(3)))
    assert "primals" not in text
    assert "tangents_" not in text
    assert "sin" in text
    assert "cos" in text


def test_AG_1_halves_and_whole_are_graph_modules_that_verify():
    program = fg.capture(lambda x: x.sin(), leaf(3))
    assert all(isinstance(part, torch.fx.GraphModule) for part in (program.graph, program.forward, program.backward))
    program.verify()


# AG-2: unused inputs


@also_compiled
def test_AG_2_an_unused_input_gets_no_gradient():
    assert_same(lambda x, y: x * 2, lambda: (leaf(2), leaf(2)), calls=2)


def test_AG_2_an_input_used_only_without_grad_gets_no_gradient():
    assert_same(lambda x, y: x * y.detach() + (y > 0), lambda: (leaf(2), leaf(2)))


# AG-3: grad mode


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("outside", [True, False])
def test_AG_3_grad_mode_changed_inside_stays_changed(mode, outside):
    def f(x):
        y = x * 3
        torch.set_grad_enabled(mode)
        return y, x * 2

    with torch.set_grad_enabled(outside):
        assert_same(f, lambda: (leaf(2),), calls=2)


@same_as_eager
def test_AG_3_grad_mode_of_the_first_call_is_not_baked_in(wrap):
    f, x = wrap(lambda x: x * 2), leaf(2)
    results = []
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode, torch.no_grad, torch.enable_grad):
        with mode():
            results.append(f(x))
    return results


def test_AG_3_a_region_with_grad_trains_inside_no_grad():
    def f(x):
        with torch.enable_grad():
            y = x * 2
        return y, y * 3

    with torch.no_grad():
        assert_same(f, lambda: (leaf(2),), calls=2)


def test_AG_3_a_region_without_grad_is_a_constant_of_backward():
    def f(x):
        with torch.no_grad():
            scale = x.norm()
        return x / scale, scale

    assert_same(f, lambda: (leaf(3),))


# AG-4: autocast


def matmul(a, b):
    return (a @ b).relu() @ a


def under_autocast(fn, **options):
    def f(*args):
        with torch.autocast("cpu", dtype=torch.bfloat16, **options):
            return fn(*args)

    return f


@also_compiled
def test_AG_4_a_call_under_autocast():
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(matmul, lambda: (leaf(2, 2), leaf(2, 2)), calls=2)


@same_as_eager
def test_AG_4_backward_outside_autocast_uses_the_forwards(wrap):
    a, b = leaf(2, 2), leaf(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = wrap(matmul)(a, b)
    out.sum().backward()
    return out, grads_of(a, b)


def test_AG_4_autocast_inside():
    assert_same(under_autocast(matmul), lambda: (leaf(2, 2), leaf(2, 2)))


@same_as_eager
def test_AG_4_autocast_switched_off_inside(wrap):
    a, b = leaf(2, 2), leaf(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = wrap(under_autocast(matmul, enabled=False))(a, b)
    out.sum().backward()
    return out, grads_of(a, b)


@same_as_eager
def test_AG_4_autocast_of_the_first_call_is_not_baked_in(wrap):
    f, a, b = wrap(matmul), leaf(2, 2), leaf(2, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        first = f(a, b)
    with torch.autocast("cpu", dtype=torch.float16):
        second = f(a, b)
    return first, second, f(a, b)


def test_AG_4_autocast_state_left_changed_stays_changed():
    def f(a, b):
        torch.set_autocast_enabled("cpu", True)
        return a @ b

    assert_same(f, lambda: (leaf(2, 2), leaf(2, 2)), calls=2, backward=False)


# AG-5: anomaly mode


@pytest.mark.filterwarnings("ignore:Anomaly Detection", "ignore:Error detected in")
def test_AG_5_anomaly_mode_reports_nan_in_backward():
    for call in (lambda x: (x / x).sqrt(), compiled(lambda x: (x / x).sqrt())):
        with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan"):
            call(torch.zeros(2, requires_grad=True)).sum().backward()


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@same_as_eager
def test_AG_5_anomaly_mode_changes_no_result(wrap):
    x = leaf(2)
    with torch.autograd.detect_anomaly():
        wrap(lambda x: x.sin())(x).sum().backward()
    return grads_of(x)


# AG-6: hooks


@pytest.mark.parametrize("replace", [lambda g: g * 10, lambda g: None, lambda g: g.clamp(max=0.5)])
def test_AG_6_tensor_hooks_registered_inside(replace):
    def f(x):
        y = x * 2
        y.register_hook(replace)
        return y.sin(), y * 3

    assert_same(f, lambda: (leaf(2),), calls=2)


@same_as_eager
def test_AG_6_hooks_on_inputs_and_outputs(wrap):
    x, seen = leaf(2), []
    x.register_hook(lambda g: seen.append(g) or g * 2)
    x.register_post_accumulate_grad_hook(lambda t: seen.append(t.grad.clone()))
    out = wrap(lambda x: x.sin())(x)
    out.register_hook(lambda g: g * 3)
    out.grad_fn.register_prehook(lambda grads: (grads[0] * 5,))
    out.sum().backward()
    return Gradients(seen), grads_of(x)


@same_as_eager
def test_AG_6_multi_grad_hook_sees_what_is_reached(wrap):
    a, b, seen = leaf(2), leaf(2), []
    register_multi_grad_hook((a, b), lambda grads: seen.append([g is not None for g in grads]))
    wrap(lambda a, b: (a * 2, a * b))(a, b)[0].sum().backward()
    return seen, grads_of(a, b)


@same_as_eager
def test_AG_6_retain_grad_of_an_output(wrap):
    out = wrap(lambda x: x.sin())(leaf(2))
    out.retain_grad()
    (out * 3).sum().backward()
    return grads_of(out)


@same_as_eager
def test_AG_6_saved_tensor_hooks_around_the_call_see_what_is_saved(wrap):
    packed, x = [], leaf(2)
    with saved_tensors_hooks(lambda t: packed.append(1) or t.detach().clone(), lambda t: packed.append(-1) or t):
        out = wrap(lambda x: x.sin().sin())(x)
    assert packed
    out.sum().backward()
    assert sum(packed) == 0
    return grads_of(x)


@same_as_eager
def test_AG_6_saved_tensor_hooks_are_not_part_of_the_program(wrap):
    f, x, packed = wrap(lambda x: x.sin()), leaf(2), []
    with saved_tensors_hooks(lambda t: packed.append(1) or t, lambda t: t):
        f(x).sum().backward()
    count = len(packed)
    f(x).sum().backward()
    assert len(packed) == count
    return grads_of(x)


def test_AG_6_saved_tensor_hooks_inside():
    def f(x):
        with save_on_cpu():
            y = x.sin().exp()
        return y * y

    assert_same(f, lambda: (leaf(2),))


def test_AG_6_module_hooks_fire():
    def scaled(module, args, output):
        return output * 2

    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Tanh())
    model[0].register_forward_hook(scaled)
    model[1].register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    model[1].register_full_backward_hook(lambda module, grad_in, grad_out: (grad_in[0] * 3,))
    assert_same(model, lambda: (leaf(3, 2),), calls=2)


# AG-7, AG-8, AG-9, AG-10: what backward may be asked


@pytest.mark.parametrize("times", [2, 3])
@same_as_eager
def test_AG_7_retain_graph_allows_backward_again(wrap, times):
    x = leaf(2)
    out = wrap(lambda x: x.sin().sin())(x)
    for _ in range(times):
        out.sum().backward(retain_graph=True)
    out.sum().backward()
    return grads_of(x)


def test_AG_7_backward_again_without_retain_graph_is_refused():
    f = compiled(lambda x: x.sin().sin())
    out = f(leaf(2)).sum()
    out.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        out.backward()


@also_compiled
@same_as_eager
def test_AG_7_a_plain_backward_first_does_not_spoil_retain_graph_later(wrap):
    f, x = wrap(lambda x: x.sin().sin()), leaf(2)
    f(x).sum().backward()
    out = f(x)
    out.sum().backward(retain_graph=True)
    out.sum().backward()
    return grads_of(x)


@same_as_eager
def test_AG_8_gradients_can_be_differentiated(wrap):
    x = leaf(2)
    (first,) = torch.autograd.grad(wrap(lambda x: x.sin())(x).sum(), x, create_graph=True)
    first.sum().backward()
    return Gradients([first]), grads_of(x)


@same_as_eager
def test_AG_9_the_deterministic_flag_may_change_before_backward(wrap):
    x = leaf(2)
    out = wrap(lambda x: x.sin())(x)
    torch.use_deterministic_algorithms(True)
    try:
        out.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return grads_of(x)


@same_as_eager
def test_AG_10_backward_under_vmap(wrap):
    x = leaf(2)
    out = wrap(lambda x: x.sin() * x.sum())(x)
    return torch.func.vmap(lambda v: torch.autograd.grad(out, x, v, retain_graph=True)[0])(torch.eye(2))


@also_compiled
@same_as_eager
def test_AG_10_batched_gradients(wrap):
    x = leaf(2)
    out = wrap(lambda x: x.sin() * x.sum())(x)
    return Gradients(torch.autograd.grad(out, x, torch.eye(2), is_grads_batched=True))


@pytest.mark.parametrize("vectorize", [True, False])
@same_as_eager
def test_AG_10_jacobian_of_a_compiled_function(wrap, vectorize):
    f = wrap(lambda x: x.sin() * x.sum())
    return torch.autograd.functional.jacobian(f, torch.randn(2), vectorize=vectorize)


# AG-11, AG-12: what is saved


class KeepsAttribute(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.w = w
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.w, None


class SavesForBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(w)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * ctx.saved_tensors[0], None


@same_as_eager
def test_AG_11_a_tensor_kept_as_attribute_is_read_in_backward_without_a_version_check(wrap):
    x, w = leaf(2), torch.ones(2)
    out = wrap(lambda x, w: KeepsAttribute.apply(x, w))(x, w)
    w.mul_(7)
    out.sum().backward()
    return grads_of(x)


@pytest.mark.parametrize("f", [lambda x, w: SavesForBackward.apply(x, w), lambda x, w: (x * w).sin()])
def test_AG_11_a_saved_tensor_that_was_written_fails_in_backward(f):
    for call in (f, compiled(f)):
        x, w = leaf(2), torch.ones(2)
        out = call(x, w)
        w.mul_(7)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_AG_11_a_saved_output_that_was_written_fails_in_backward():
    for call in (torch.exp, compiled(lambda x: x.exp())):
        out = call(leaf(2))
        out.mul_(2)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


@pytest.mark.parametrize("f", [lambda x: x.exp(), lambda x: x.exp().t().exp(), lambda x: (x.t(), x.exp().view(-1))])
def test_AG_12_what_is_saved_makes_no_reference_cycle(f):
    g = compiled(f)
    g(leaf(2, 2))
    gc.collect()
    gc.disable()
    try:
        outs = g(leaf(2, 2))
        refs = [weakref.ref(t) for t in (outs if isinstance(outs, tuple) else (outs,))]
        del outs
        assert [ref() for ref in refs] == [None] * len(refs)
    finally:
        gc.enable()


def test_AG_1_a_complex_number_that_backward_conjugates():
    assert_same(lambda x: (torch.view_as_complex(x) * 1j).abs(), lambda: (leaf(3, 2),))
