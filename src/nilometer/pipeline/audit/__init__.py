"""The audit: reads every replica from its folder, checks it, and compares it with the other replicas.

``segment_check`` checks one segment file with its indexes, ``replica_check`` the segments of one replica
together, and the replicas of a partition against each other. ``audit`` runs all of it on Spark, checks the
groups' offsets, too, and repeats failed checks before it reports them; ``audit_report`` writes the report.
Nothing is ever written into a log's folder.
"""
