"""From a request's constraint to the tokens it allows next, whichever library decides."""
