"""The demonstration for ``make demo``."""
