"""When others find what a request computes; see `strategies.Publication`."""
