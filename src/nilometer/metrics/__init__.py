"""Metrics as values: families, distributions, and Prometheus' text format. Pure: time is an argument."""
