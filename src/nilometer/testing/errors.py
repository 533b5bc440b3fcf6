"""The error of a test cluster."""

from __future__ import annotations


class ClusterError(Exception):
    """A broker of the test cluster did not start, stop or respond; the message says which, and why."""
