"""Copies sealed segments into an archive, beside brokers that run or without any; puts topics back.

An archive is remote storage that no broker writes: what both consist of is in :mod:`nilometer.tier.format`.
``archiver`` decides what to copy, checks and copies it; ``stored`` opens, lists and checks what is stored.
``restore`` puts topics back on the disks of brokers, ``tier_restore`` into remote storage, both through
``replica_folders``.
"""
