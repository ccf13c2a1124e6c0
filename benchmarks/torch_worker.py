"""A process with torch, that trains one of the workloads in one way of `training_ways.py`: see `serve.py`.

python benchmarks/torch_worker.py THREADS
"""

import sys

import torch
from serve import serve
from torch import Tensor
from training_ways import way_of
from workloads import build


class Training:
    def __init__(self, workload: str, way: str) -> None:
        self.step = way_of(way)(*build(workload))

    def wait(self, loss: Tensor) -> None:
        """Kernels of a CPU have run when they return."""


if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    torch._dynamo.config.trace_autograd_ops = True  # without it a backward inside a function is refused
    serve({"torch": torch.__version__}, Training)
