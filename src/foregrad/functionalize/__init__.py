"""Turn a trace, with its writes and views, into a pure graph and a list of effects to apply after it."""
