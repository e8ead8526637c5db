"""Model files, what they say about a model, and the forward pass of each architecture.

An architecture is one module (`llama`) and one entry in `loader.ARCHITECTURES`. It states which
tensors it needs and records its forward pass through `kernels.ops`; it never sees a tensor's bytes.
"""
