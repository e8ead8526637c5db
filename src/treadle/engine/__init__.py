"""The engine: requests, the loop that serves them, its process, and the Python interface."""
