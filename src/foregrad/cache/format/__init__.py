"""Format: a header and blobs in one `.fg` file."""
