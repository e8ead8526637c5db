"""Who gives way when KV runs out; see `strategies.Shortage`."""
