"""Who computes how many tokens in a step; see `strategies.Composition`."""
