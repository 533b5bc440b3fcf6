"""Checks of transactions: what clients sent, which responses they got, and what is in the logs."""
