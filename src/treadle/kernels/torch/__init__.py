"""The torch reference backend: the kernel boundary's specification in executable form.

PyTorch is imported here and nowhere else, and only when this backend is chosen.
"""
