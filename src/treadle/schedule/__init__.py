"""Who computes how many tokens next. Pure Python over numbers: no tensors, no clock, no I/O."""
