"""Quotas of clients as values: their entities, which one counts, how its use is measured. Pure."""
