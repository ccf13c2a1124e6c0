"""Kernels: C++ of our own, convolutions, small products and the calls between them."""
