"""Random small packages, edited between two processes or within one: no program that is found may be stale."""
