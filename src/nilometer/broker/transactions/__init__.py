"""Transactions on one broker: the coordinator (:mod:`.coordinator`), the markers that it has written
(:mod:`.markers`), the check before a producer writes (:mod:`.verification`), and the APIs that ask for these.
What they decide is in the pure :mod:`nilometer.transactions`.
"""
