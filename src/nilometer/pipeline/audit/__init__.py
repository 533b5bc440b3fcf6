"""The audit: every replica of every partition, read from its folder and held against itself and the others.

``segment_check`` judges one segment file with its indexes, ``replica_check`` what the segments of one replica
say together, ``comparison`` the replicas of a partition beside each other, ``committed_offsets`` the groups.
``audit`` runs all of it on Spark and looks again at what it found before it says so; ``report`` writes it
down.
Nothing is ever written into a folder of a log.
"""
