"""Settings, and their resolution into values with reasons. Imports no other folder."""
