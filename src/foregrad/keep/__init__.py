"""Keep: programs in files, and found again."""
