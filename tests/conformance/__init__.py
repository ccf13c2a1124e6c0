"""Sweeps over PyTorch's ops, its modules and `transformers`, with eager as the reference."""
