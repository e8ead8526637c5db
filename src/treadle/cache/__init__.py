"""KV blocks: who holds them, which hold a known prefix, which may be reused.

Pure Python over numbers; the memory itself belongs to the kernels' KV pool. Imports only `wire`.
"""
