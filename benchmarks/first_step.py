"""One training step in a fresh process, from after `import torch`: what benchmarks/cold.py starts and measures.

python benchmarks/first_step.py WORKLOAD torch.compile|foregrad [THREADS] [BACKEND]

Prints one line of JSON: wall seconds up to the end of the step, CPU seconds that the process had used before, the loss,
and the sum of the gradients' magnitudes.
"""

import json
import resource
import sys
import time

import torch

STARTED = time.perf_counter()
USED = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])


def main(workload: str, side: str, threads: str = "1", backend: str = "inductor") -> None:
    from workloads import build

    torch.set_num_threads(int(threads))
    model, inputs = build(workload)
    if side == "torch.compile":
        compiled = torch.compile(model)
    else:
        import foregrad as fg

        compiled = fg.compile(model, backend=backend)
    loss = compiled(*inputs)
    loss.backward()
    wall = time.perf_counter() - STARTED
    gradients = sum(float(p.grad.abs().sum()) for p in model.parameters() if p.grad is not None)
    print(json.dumps({"wall": wall, "cpu_before": USED, "loss": loss.item(), "gradients": gradients}))


if __name__ == "__main__":
    main(*sys.argv[1:])
