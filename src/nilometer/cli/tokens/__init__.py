"""The commands on users."""
