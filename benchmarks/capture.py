"""Joint capture of forward and backward: foregrad against torch's `aot_export_joint_simple`.

python benchmarks/capture.py [--rounds 5] [--clock cpu|wall]
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

import torch
from measure import Timing, add_options, interleave, start, table, verdict
from models import GPT, ResidualStack
from rich.console import Console
from torch import nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx import GraphModule

import foregrad as fg

STACKS = (25, 50, 100, 200, 400)
FASTER, FLAT = 6.0, 1.3


@dataclass(frozen=True)
class Captured:
    """How long both sides take for one model, and how many nodes they record."""

    name: str
    ours: Timing
    theirs: Timing
    our_nodes: int
    their_nodes: int

    @property
    def ratio(self) -> float:
        return self.theirs.median / self.ours.median

    @property
    def our_node_cost(self) -> float:
        return self.ours.median / self.our_nodes

    @property
    def their_node_cost(self) -> float:
        return self.theirs.median / self.their_nodes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_options(parser, rounds=5)
    parser.add_argument("--blocks", type=int, nargs="*", default=STACKS, help="residual blocks")
    options = parser.parse_args()
    console = start(options)
    results = [compare(name, build(), inputs, options) for name, build, inputs in subjects(options.blocks)]
    print_results(results, console)


def subjects(stacks: tuple[int, ...]) -> list[tuple[str, Callable[[], nn.Module], tuple[torch.Tensor, ...]]]:
    torch.manual_seed(0)
    tokens = torch.randint(8192, (2, 4, 128))
    x = torch.randn(32, 128)
    deep = [(f"{n} blocks", lambda n=n: ResidualStack(n), (x,)) for n in stacks]
    return [("GPT, 6 layers", GPT, (tokens[0], tokens[1])), *deep]


def compare(name: str, model: nn.Module, inputs: tuple[torch.Tensor, ...], options: argparse.Namespace) -> Captured:
    nodes: dict[str, int] = {}

    def ours() -> GraphModule:
        graph = fg.capture(model, *inputs).graph
        nodes["ours"] = len(graph.graph.nodes)
        return graph

    def theirs() -> GraphModule:
        graph = torch_joint(model, inputs)
        nodes["theirs"] = len(graph.graph.nodes)
        return graph

    times = interleave({"ours": ours, "theirs": theirs}, rounds=options.rounds, clock=options.clock, title=name)
    return Captured(name, times["ours"], times["theirs"], nodes["ours"], nodes["theirs"])


def torch_joint(model: nn.Module, inputs: tuple[torch.Tensor, ...]) -> GraphModule:
    names, parameters = zip(*model.named_parameters(), strict=True)

    def flat(*values: torch.Tensor) -> tuple[torch.Tensor]:
        state = dict(zip(names, values, strict=False))
        return (torch.func.functional_call(model, state, values[len(names) :]),)

    return aot_export_joint_simple(flat, (*parameters, *inputs), trace_joint=True)


def print_results(results: list[Captured], console: Console) -> None:
    columns = ("ms", "first, ms", "nodes", "us/node")
    heads = [f"{column}\n{side}" for side in ("foregrad", "torch") for column in columns]
    rows = table("Joint capture", "", *heads, "times faster")
    for r in results:
        ours = (
            r.ours.text(1e-3, 0),
            f"{r.ours.first * 1e3:.0f}",
            str(r.our_nodes),
            f"{r.our_node_cost * 1e6:.0f}",
        )
        theirs = (r.theirs.text(1e-3, 0), f"{r.theirs.first * 1e3:.0f}", str(r.their_nodes))
        rows.add_row(r.name, *ours, *theirs, f"{r.their_node_cost * 1e6:.0f}", verdict(r.ratio, at_least=FASTER))
    console.print(rows)
    costs = [r.our_node_cost for r in results if r.name.endswith("blocks")]
    if len(costs) > 1:
        flatness = verdict(max(costs) / min(costs), at_most=FLAT)
        console.print(f"foregrad's cost per node over the stacks, largest / smallest: {flatness}")


if __name__ == "__main__":
    main()
