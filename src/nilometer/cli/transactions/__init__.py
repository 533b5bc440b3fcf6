"""The commands on transactions."""
