"""Ghosts: tensors without data, and what each op makes of them."""
