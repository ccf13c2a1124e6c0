"""Golden listings: a small program in, its text out."""

from pathlib import Path

import pytest
import torch

import foregrad as fg
from foregrad.backends.backend import FromList
from foregrad.backends.eager import compile_graph
from foregrad.backends.guarded_code import Guarded
from foregrad.backends.stitch import stitch
from foregrad.regions.regions import find_regions
from tests.compare import leaf
from tests.golden import assert_golden
from tests.text import programs

PROGRAMS = {
    "pointwise": lambda: (programs.pointwise, leaf(3), leaf(3)),
    "normed": lambda: (programs.Normed(), torch.randn(4, 3)),
    "writes_and_returns_a_view": lambda: (programs.writes_and_returns_a_view, leaf(2, 3).clone(), leaf(3)),
    "force": lambda: (programs.force, leaf(3)),
    "closed_over": lambda: (programs.closed_over, leaf(3)),
    "checkpointed": lambda: (programs.checkpointed, leaf(2, 3), leaf(3, 3)),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_listing_is_golden(name):
    listing = str(fg.capture(*PROGRAMS[name]()))
    assert_golden(listing, Path(__file__).parent / f"{name}.txt")


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_listing_can_be_compared(name):
    """Two captures give one text: no addresses, no counters, no times."""
    assert str(fg.capture(*PROGRAMS[name]())) == str(fg.capture(*PROGRAMS[name]()))


def by_regions(graph, name):
    """A backend that finds regions and runs them op by op."""
    regions = find_regions(graph)
    compiled = [FromList(compile_graph(region.graph, "region")) for region in regions.distinct]
    return Guarded.of(stitch(regions, compiled, name), graph, name, regions)


def test_the_listing_of_a_capture_shows_where_regions_begin():
    compiled = fg.compile(programs.Stack(), backend=by_regions)
    compiled(torch.randn(2, 4)).backward()
    (made,) = compiled.captures
    assert_golden(str(made), Path(__file__).parent / "stack.txt")
    assert [line for line in str(made).splitlines() if not line.startswith("    --")] == str(made.program).splitlines()


def test_without_regions_it_is_the_listing_of_the_program():
    compiled = fg.compile(programs.pointwise, backend="eager")
    compiled(leaf(3), leaf(3))
    (made,) = compiled.captures
    assert str(made) == str(made.program)


def test_every_golden_file_has_a_program():
    assert {path.stem for path in Path(__file__).parent.glob("*.txt")} == {*PROGRAMS, "stack"}


def test_a_backward_op_stands_under_the_line_of_its_forward_op():
    """Also where ops without a gradient, such as the counting of batches, come between."""
    backward = str(fg.capture(*PROGRAMS["normed"]())).split("  backward\n")[1]
    assert "y = self.fc(x)  [fc]\n" in backward
