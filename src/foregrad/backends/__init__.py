"""Backends: turn a graph into something that can be called with a list of tensors."""
