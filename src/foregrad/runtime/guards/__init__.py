"""Guards: what a capture assumed, checked at each call."""
