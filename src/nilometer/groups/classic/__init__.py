"""Groups of the classic protocol: members join, their leader assigns the partitions, all send heartbeats.

Pure.
"""
