"""Clients of a simulated cluster: programs that use the product's client library and note what it answered.

What they note is a :class:`~nilometer.simulation.checkers.history.History`; what it means is the checkers'.
"""
