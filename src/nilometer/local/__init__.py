"""Clusters of broker processes on this machine, for ``nilometer up`` and ``nilometer.testing``."""
