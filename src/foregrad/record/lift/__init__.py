"""Lift: arguments, parameters, buffers, closures and optimizer state as inputs."""
