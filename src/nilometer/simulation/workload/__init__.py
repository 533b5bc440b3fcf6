"""Clients of a simulated cluster: programs that use the client library and record the results.

They record a :class:`~nilometer.simulation.checkers.history.History`, which the checkers check.
"""
