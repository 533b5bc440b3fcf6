"""Share groups (KIP-932): the coordinator assigns partitions that several members may read at once.

Pure. The state of a :class:`~nilometer.groups.share.group.ShareGroup` is computed from its records;
``share_groups`` decides which records to write, and ``assignor`` how partitions are shared. The state of the
share partitions themselves, such as start offsets, is kept by the share coordinator: a group only knows for
which partitions there is one.
"""
