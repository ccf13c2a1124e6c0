"""Key: what a program depends on, as named ingredients."""
