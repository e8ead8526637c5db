"""Kernels behind one boundary (`ops`): `native` is C++ for CPUs, `torch` the readable reference.

Only this package knows how weights, activations and KV blocks are laid out in memory.
"""
