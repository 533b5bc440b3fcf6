"""Quotas of clients as values: for whom they are, which one counts, and how its use is measured. Pure."""
