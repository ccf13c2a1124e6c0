"""A classifier whose numbers are all on the command line, trained by a step that reads them."""

import argparse
import json
import logging
import time

import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg

parser = argparse.ArgumentParser(description="train a classifier")
parser.add_argument("--width", type=int, default=32)
parser.add_argument("--depth", type=int, default=2)
parser.add_argument("--smoothing", type=float, default=0.1)
parser.add_argument("--activation", choices=["relu", "gelu"], default="gelu")
parser.add_argument("--penalty", type=float, default=1e-3)
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--verbose", action="store_true")
args = parser.parse_args()
logging.basicConfig(level=logging.INFO if args.verbose else logging.WARNING)
log = logging.getLogger(__name__)
started = time.time()

ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu}


class Classifier(nn.Module):
    def __init__(self, width, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.out = nn.Linear(width, 10)

    def forward(self, x):
        for layer in self.layers:
            x = x + ACTIVATIONS[args.activation](layer(x))
        return self.out(x)


torch.manual_seed(0)
model = Classifier(args.width, args.depth)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.epochs)


@fg.step(model, optimizer)
def train(x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y, label_smoothing=args.smoothing)
    if args.penalty > 0:
        loss = loss + args.penalty * sum(p.square().sum() for p in model.parameters())
    loss.backward()
    optimizer.step()
    return loss.detach()


for epoch in range(args.epochs):
    loss = train(torch.randn(8, args.width), torch.randint(10, (8,)))
    scheduler.step()
    log.info("epoch %d: loss %f after %f s", epoch, loss, time.time() - started)

print(
    json.dumps(
        {"how": [one.origin.how for one in train.captures], "explained": str(fg.explain(train)), "loss": loss.item()}
    )
)
