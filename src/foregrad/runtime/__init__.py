"""Run a compiled program on real tensors: guards, the autograd function, effects."""
