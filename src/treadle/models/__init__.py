"""Model files, what they say about a model, and the forward pass that follows.

An architecture is an entry in `families` and, where its tensors are called otherwise, in `names`.
`gguf_card` and `config_card` make a card of what a file says, `tensors` the list of what it must
hold, and `decoder` the recorded forward pass; none of them sees a tensor's bytes.
"""
