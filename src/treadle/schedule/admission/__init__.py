"""Whether a waiting request may start; see `strategies.Admission`."""
