"""Judges of transactions: what clients were told of them, and what lies in the logs."""
