"""Transactions on one broker: the coordinator (:mod:`.transaction_coordinator`), the markers that it writes
(:mod:`.markers`), the check before a producer writes (:mod:`.verification`), and the APIs that ask for these.
What they decide is in the pure :mod:`nilometer.transactions`.
"""
