"""Groups of all kinds on one broker: the coordinator (:mod:`.coordinator`), and the APIs that ask it, one
file a protocol. What they decide is in the pure :mod:`nilometer.groups`.
"""
