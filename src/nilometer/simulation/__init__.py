"""Deterministic simulation: the real broker code on a virtual clock, network and disk, driven by one seed."""
