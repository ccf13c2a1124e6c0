"""Python: what the function does and reads beside its tensors."""
