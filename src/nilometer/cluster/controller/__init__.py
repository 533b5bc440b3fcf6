"""The controller's decisions: functions ``decide_*(image, request) -> Decision(units, reply)``.

They read the image and never change it; the result is the records to append and the response. A *unit* is a
group of records that is applied together. Every change of a partition is made by
:mod:`~nilometer.cluster.controller.partition_change`, which elects the leader.
"""
