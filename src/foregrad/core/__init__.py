"""The values that stages pass on, and what all stages need to know about tensors."""
