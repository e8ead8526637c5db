"""What crosses HTTP on the OpenAI routes, as types. Fields beyond OpenAI's have vLLM's names.

An explicit null is the same as an absent field. Unknown fields are ignored; fields that would
change the answer and are not implemented are declared, and refused when they hold anything.
"""
