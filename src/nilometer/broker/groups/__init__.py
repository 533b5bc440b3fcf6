"""The broker's side of groups: runs the shards of the pure core in ``nilometer.groups``.

:mod:`nilometer.broker.coordinators` describes how requests, shells and shards work together.
"""
