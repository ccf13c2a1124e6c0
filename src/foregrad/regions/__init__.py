"""From a graph to its distinct regions: what repeats is compiled once and called many times."""
