"""Groups of all kinds on one broker: the coordinator (:mod:`.group_coordinator`), and the APIs that ask it, a
file for each protocol. What they decide is in the pure :mod:`nilometer.groups`.
"""
