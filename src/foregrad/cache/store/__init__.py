"""Store: entries by their keys, in folders, on servers and behind URLs."""
