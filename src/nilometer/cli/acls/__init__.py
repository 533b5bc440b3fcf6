"""The commands on ACLs."""
