"""Groups of the classic protocol: members join, one of them deals the partitions out, all beat. Pure."""
