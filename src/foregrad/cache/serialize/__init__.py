"""Serialize: what was compiled, as a file and in a cache, and back."""
