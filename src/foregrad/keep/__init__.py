"""What outlives a process: artifacts, a cache, and the keys by which programs are found in it."""
