"""What a test changes in another module than its own."""

import torch

SCALE = 2.0
OPTIONS = {"scales": [2.0]}
WEIGHT = torch.ones(3)


def scaled(x):
    return x * SCALE


def scaled_twice(x):
    return scaled(scaled(x))


def weighted(x):
    return x * WEIGHT


count = 0
