"""Share groups (KIP-932): the state of a share partition beside its leader, and what of it is kept in a log.

A *share partition* is one topic partition as one share group reads it.
"""
