"""In which order waiting requests are looked at: one small file an order; see `waiting`."""
