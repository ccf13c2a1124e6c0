"""`python -m tests.conformance.data_parallel WHERE SUBJECT FOLDER SEED RANK`: one of two that train together."""

import os
import sys

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from . import judge


def main(where: str, subject: str, folder: str, seed: str, rank: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(int(seed))
    compile_fn = getattr(judge, subject)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=int(rank), world_size=2)
    net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
    model = DistributedDataParallel(compile_fn(net)) if where == "inside" else compile_fn(DistributedDataParallel(net))
    optimizer = torch.optim.AdamW(net.parameters(), 1e-2)
    torch.manual_seed(int(seed) + int(rank))
    losses = []
    for _ in range(3):
        x = torch.randn(4, 8)
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), x.sum(1, keepdim=True))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    torch.save({"losses": losses, "state": dict(net.state_dict())}, os.path.join(folder, f"{rank}.pt"))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
