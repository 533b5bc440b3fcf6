"""Simulated clusters, the model check, and the scenarios of replication."""
