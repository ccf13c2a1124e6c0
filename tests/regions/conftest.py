"""The eager backend with every half cut into regions, each compiled by itself, and compared with the whole."""

import operator

import pytest
import torch

from foregrad.backends import choose
from foregrad.backends.backend import FromList
from foregrad.backends.eager import compile_graph
from foregrad.backends.stitch import stitch
from foregrad.regions import find
from foregrad.regions.regions import find_regions


def is_same(ours, theirs):
    if ours is None or theirs is None:
        return ours is theirs
    look = (ours.shape, ours.stride(), ours.dtype, ours.storage_offset())
    return look == (theirs.shape, theirs.stride(), theirs.dtype, theirs.storage_offset()) and bits(ours) == bits(theirs)


def is_scratch(result):
    """Whether a result is memory that a recurrent layer of mkldnn leaves uninitialized in part."""
    layer = result.args[0] if result is not None and result.target is operator.getitem else None
    return layer is not None and layer.target is torch.ops.aten.mkldnn_rnn_layer.default and result.args[1] == 3


def bits(tensor):
    return tensor.contiguous().resolve_conj().resolve_neg().view(-1).numpy().tobytes()


def copied(value):
    """The same tensor in memory of its own."""
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.detach().untyped_storage().clone()
    return torch.empty(0, dtype=value.dtype).set_(storage, value.storage_offset(), value.shape, value.stride())


@pytest.fixture
def found(monkeypatch):
    """Compiled programs run region by region, bitwise as they do whole; the list grows by the regions of each half."""
    found = []

    def compile_regions(half, name):
        regions = find_regions(half)
        found.append(regions)
        stitched = stitch(regions, [FromList(compile_graph(r.graph, "region")) for r in regions.distinct], name)
        whole = compile_graph(half, name)
        compared = [place for place, result in enumerate(half.graph.output_node().args[0]) if not is_scratch(result)]

        def run(*inputs):
            before = torch.get_rng_state()
            expected, after = whole(*map(copied, inputs)), torch.get_rng_state()  # a program may write to its inputs
            torch.set_rng_state(before)
            results = stitched(*inputs)
            assert torch.equal(torch.get_rng_state(), after)
            assert all(is_same(results[place], expected[place]) for place in compared)
            return results

        return run

    monkeypatch.setattr(choose, "compile_graph", compile_regions)
    return found


@pytest.fixture
def eager_to_cut(monkeypatch, request):
    """Whatever repeats is a region, be it a single op."""
    if not getattr(request, "param", True):
        return
    monkeypatch.setattr(find, "_SMALLEST_UNIT", 1)
    for cost in ("_CALL", "_REGION"):
        monkeypatch.setattr(find, cost, 0)
