"""Memory, pictures, differences, and why a tensor is alive."""

import gc
import re
import weakref
from xml.etree import ElementTree

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.graph.layout import lay_out
from tests.graph.leaves import leaf


class Block(nn.Module):
    """A transformer block, small."""

    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).chunk(3, dim=-1)
        x = x + self.out((q @ k.transpose(-1, -2)).softmax(-1) @ v)
        return x + self.mlp(self.norm2(x))


def tracked(net, *args):
    with fg.graph.track_modules(net):
        return net(*args)


def test_memory_counts_each_storage_once():
    x = leaf(100)
    y = x.clone()
    a = y.view(10, 10).exp() * y.view(10, 10).sin()
    memory = fg.graph.memory(a)
    # sin saves y, exp its result, and mul the results of both
    assert memory.total == 3 * 400
    assert memory.leaves == 0
    assert fg.graph.memory((x * x).sum()).total == 0
    assert fg.graph.memory((x * x).sum()).leaves == 400
    a.sum().backward()
    assert fg.graph.memory(a).total == 0


def test_memory_by_node_and_by_module():
    net = Block()
    loss = tracked(net, torch.randn(2, 5, 8)).sum()
    memory = fg.graph.memory(loss)
    assert memory.total == sum(memory.by_module.values()) == sum(kept.num_bytes for kept in memory.nodes)
    # GELU saves its input; its result is saved by the layer after it
    assert memory.by_module["mlp.1"] == memory.by_module["mlp.2"] == 2 * 5 * 32 * 4
    assert memory.below("mlp") == memory.by_module["mlp.0"] + 2 * 2 * 5 * 32 * 4
    assert memory.leaves == sum(
        p.nbytes for name, p in net.named_parameters() if name != "x" and "bias" not in name
    ) + sum(p.nbytes for name, p in net.named_parameters() if "norm" in name and "bias" in name)
    text = str(memory)
    assert "GeluBackward0 f32[2, 5, 32]  saves self f32[2, 5, 32]  [mlp.1]" in text
    assert text.splitlines()[0].endswith("that leaves have anyway")


def test_memory_of_policies_and_hooks(tmp_path):
    x = torch.randn(1000, requires_grad=True)
    with fg.graph.save_on_disk(tmp_path):
        a = x.exp()
    with fg.graph.save_as(torch.bfloat16):
        b = a.exp()
    with fg.graph.saved_tensors_hooks(lambda t: (t.double(), "x"), lambda p: p[0].float()):
        c = b.exp()
    memory = fg.graph.memory(c)
    assert memory.by_place == {"disk": 4000, "cpu": 2000 + 8000}
    assert "save_as" in str(memory)


def test_memory_is_that_which_is_freed():
    """What the count says goes when the graph goes, as the allocator sees it."""
    net = Block()
    x = torch.randn(2, 5, 8)
    before = live_bytes()
    loss = net(x).sum()
    memory = fg.graph.memory(loss)
    kept = live_bytes() - before
    assert memory.total <= kept + x.nbytes  # x is saved, but was there before
    del loss
    assert live_bytes() == before


def live_bytes() -> int:
    gc.collect()
    storages = {}
    for one in gc.get_objects():
        if type(one) in (torch.Tensor, nn.Parameter) and one.layout == torch.strided and not one.is_meta:
            storages[one.untyped_storage()._cdata] = one.untyped_storage().nbytes()
    return sum(storages.values())


def test_memory_of_a_program():
    net = Block()
    program = fg.capture(net, torch.randn(2, 5, 8))
    memory = fg.graph.memory(program)
    expected = [one for one in program.halves.saved if one.source != "input"]
    assert memory.total == sum(one.spec.num_bytes for one in expected)
    assert memory.below("mlp") == 2 * 5 * 32 * 4 * 2
    assert memory.leaves == sum(one.spec.num_bytes for one in program.halves.saved if one.source == "input")


def boxes(svg: str) -> list[tuple[float, float, float, float]]:
    tree = ElementTree.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    found = []
    for group in tree.iter(f"{space}g"):
        rect = group.find(f"{space}rect")
        x, y, width, height = (float(rect.get(name)) for name in ("x", "y", "width", "height"))
        for text in group.iter(f"{space}text"):
            assert len(text.text) * 7.3 <= width
            assert y < float(text.get("y")) < y + height
        found.append((x, y, x + width, y + height))
    return found


@pytest.mark.parametrize("what", ["graph", "program"])
def test_a_picture_has_a_box_for_each_node_and_none_overlap(what, tmp_path):
    net, x = Block(), torch.randn(2, 5, 8)
    outputs = tracked(net, x).sum() if what == "graph" else fg.capture(net, x)
    svg = fg.graph.render(outputs, tmp_path / "graph.svg").read_text()
    places = boxes(svg)
    assert len(places) == len(fg.graph.walk(outputs))
    for i, a in enumerate(places):
        for b in places[:i]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    for name in ("mlp.0.weight", "norm1", "f32[2, 5, 32]"):
        assert name in svg


def test_arrows_cross_no_box(tmp_path):
    vertices = [2, 3], [4], [3, 5], [4, 6], [6], [6], []
    layout = lay_out([(60.0 + 10 * i, 30.0) for i in range(7)], [[1, *vertices[0]], *vertices[1:]])
    for first, last, points in layout.edges:
        for x, y in points[1:-1]:
            for number, box in enumerate(layout.boxes):
                inside = abs(x - box.x) < box.width / 2 and box.top < y < box.top + box.height
                assert not inside or number in (first, last)


def test_pictures_of_every_kind(tmp_path):
    loss = tracked(Block(), torch.randn(2, 5, 8)).sum()
    page = fg.graph.render(loss, tmp_path / "graph.html").read_text()
    assert page.startswith("<!doctype html>")
    assert "<svg" in page
    assert "GeluBackward0" in page
    dot = fg.graph.render(loss, str(tmp_path / "graph.dot")).read_text()
    assert dot.startswith("digraph {")
    assert len(re.findall(r"^  n\d+ \[", dot, re.MULTILINE)) == len(fg.graph.walk(loss))
    with pytest.raises(ValueError, match=r"\.svg, \.html, \.dot files, given 'graph.png'"):
        fg.graph.render(loss, tmp_path / "graph.png")


def test_a_picture_that_nobody_can_read_is_refused(tmp_path):
    y = leaf(1)
    for _ in range(4000):
        y = y + 1
    with pytest.raises(ValueError, match="4,001 nodes cannot be read"):
        fg.graph.render(y, tmp_path / "graph.svg")
    assert "n4000" in fg.graph.render(y, tmp_path / "graph.dot").read_text()


def test_equal_graphs_do_not_differ():
    net, x = Block(), torch.randn(2, 5, 8)
    assert not fg.graph.diff(net(x), net(x))
    assert not fg.graph.diff(fg.capture(net, x), fg.capture(net, x))


def test_differences_are_named():
    x, w = leaf(3), leaf(3)
    difference = fg.graph.diff((x * w).sin().sum(), (x * w).cos().sum())
    assert [v.name for v in difference.removed] == ["SinBackward0"]
    assert [v.name for v in difference.added] == ["CosBackward0"]
    assert difference.rewired == []
    assert "- SinBackward0 f32[3]  saves self f32[3]\n+ CosBackward0 f32[3]  saves self f32[3]" in str(difference)
    larger = fg.graph.diff(leaf(3).exp(), leaf(4).exp())
    assert "- ExpBackward0 f32[3]  saves result f32[3]" in str(larger)


def test_an_edge_that_leads_elsewhere_is_a_difference():
    def graph(swap):
        a, b = leaf(2).exp(), leaf(2).exp()
        return torch.stack([b, a, a] if swap else [a, b, b]).sum()

    def other():
        a, b = leaf(2).exp(), leaf(2).exp()
        return torch.stack([b, b, b]).sum() + a.sum() * 0

    assert not fg.graph.diff(graph(False), graph(False))
    assert fg.graph.diff(graph(False), graph(True)).rewired
    assert fg.graph.diff(graph(False), other())


def kinds(tensor):
    return {holder.kind for holder in fg.graph.holders(tensor)}


def test_holders_names_variables_and_attributes():
    net = Block()
    texts = [str(holder) for holder in fg.graph.holders(net.mlp[0].weight)]
    assert any(
        re.match(r"variable net\.mlp\[0\]\.weight in test_holders_names_\w+ \(test_see.py:\d+\)", t) for t in texts
    )
    cache = {"last": [torch.ones(3)]}
    assert any("variable cache['last'][0] in" in str(holder) for holder in fg.graph.holders(cache["last"][0]))


def test_holders_names_nodes_views_and_gradients():
    x = leaf(3)
    y = x * 2
    z = y.exp() * y
    assert kinds(y) == {"reference", "saved"}
    (text,) = [str(holder) for holder in fg.graph.holders(y) if holder.kind == "saved"]
    assert re.match(r"saved as \w+ by MulBackward0, behind variable z in test_holders", text)
    part = y[1:]
    assert any(holder.kind == "view" and "variable part in" in str(holder) for holder in fg.graph.holders(y))
    z.sum().backward()
    assert part.shape == (2,)
    assert any(h.kind == "gradient" and "the .grad of variable x in" in str(h) for h in fg.graph.holders(x.grad))
    assert "saved" not in kinds(y)


def test_tensors_that_may_not_be_used_do_not_matter():
    base = leaf(3, 2) * 1
    first, _ = base.unbind(1)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="Output 0 of Unbind"):
        first.grad_fn
    assert any(holder.kind == "view" and "variable first in" in str(holder) for holder in fg.graph.holders(base))


def test_looking_holds_on_to_nothing():
    x = torch.ones(3)
    fg.graph.holders(x)
    reference = weakref.ref(x)
    del x
    gc.collect()
    assert reference() is None
