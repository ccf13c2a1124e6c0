"""The words that every stage shares: what a tensor looks like, and what role each value plays."""
