"""Measuring: workloads, a client for any OpenAI-compatible server, statistics and their report."""
