"""Brokers on this machine, and the metadata log that brokers agree through."""
