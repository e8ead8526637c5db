"""The few messages, and the channels that carry them. Imports no other folder."""
