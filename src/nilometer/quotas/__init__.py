"""Quotas of clients as values: the entities that have them, which one counts, how its use is measured. Pure."""
