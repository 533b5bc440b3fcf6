"""Coordinator records of every type, in every shape that changes their bytes."""

from __future__ import annotations

from uuid import UUID

from nilometer.groups.records import (
    AssignedTaskIds,
    AssignedTopicPartitions,
    ClassicMemberMetadata,
    ClassicProtocol,
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    ConsumerGroupMemberMetadataKey,
    ConsumerGroupMemberMetadataValue,
    ConsumerGroupMetadataKey,
    ConsumerGroupMetadataValue,
    ConsumerGroupPartitionMetadataKey,
    ConsumerGroupPartitionMetadataValue,
    ConsumerGroupRegularExpressionKey,
    ConsumerGroupRegularExpressionValue,
    ConsumerGroupTargetAssignmentMemberKey,
    ConsumerGroupTargetAssignmentMemberValue,
    ConsumerGroupTargetAssignmentMetadataKey,
    ConsumerGroupTargetAssignmentMetadataValue,
    CoordinatorRecord,
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
    PartitionRacks,
    RecordKey,
    RecordValue,
    ShareGroupCurrentMemberAssignmentKey,
    ShareGroupCurrentMemberAssignmentValue,
    ShareGroupMemberMetadataKey,
    ShareGroupMemberMetadataValue,
    ShareGroupMetadataKey,
    ShareGroupMetadataValue,
    ShareGroupStatePartitionMetadataKey,
    ShareGroupStatePartitionMetadataValue,
    ShareGroupTargetAssignmentMemberKey,
    ShareGroupTargetAssignmentMemberValue,
    ShareGroupTargetAssignmentMetadataKey,
    ShareGroupTargetAssignmentMetadataValue,
    StreamsGroupCurrentMemberAssignmentKey,
    StreamsGroupCurrentMemberAssignmentValue,
    StreamsGroupMemberMetadataKey,
    StreamsGroupMemberMetadataValue,
    StreamsGroupMetadataKey,
    StreamsGroupMetadataValue,
    StreamsGroupTargetAssignmentMemberKey,
    StreamsGroupTargetAssignmentMemberValue,
    StreamsGroupTargetAssignmentMetadataKey,
    StreamsGroupTargetAssignmentMetadataValue,
    StreamsGroupTopologyKey,
    TopicInfo,
    TopicMetadata,
    TopicPartitionsInfo,
)
from nilometer.groups.requests import TopicPartitions
from nilometer.groups.streams_topology import (
    CopartitionGroup,
    Endpoint,
    KeyValue,
    Subtopology,
    TaskIds,
    Topology,
)
from nilometer.groups.streams_topology import TopicInfo as StreamsTopic

NOW_MS = 1_760_000_000_000
ID, OTHER_ID = UUID(int=2**127 + 5), UUID("0193d3b0-7f5e-7000-8000-00000000abcd")

OFFSET = OffsetCommitKey("grüppe", "topic.a", 11)
GROUP = GroupMetadataKey("g")
MEMBER = MemberMetadata("c-1", "inst", "c", "/127.0.0.1", 30_000, 10_000, b"\x00\x01sub", b"\xff\x00")
PLAIN_MEMBER = MemberMetadata("c-2", None, "", "/::1", -1, 6_000, b"", b"")
EPOCHS = AssignedTopicPartitions(ID, (0, 3), (7, 9))
NO_EPOCHS = AssignedTopicPartitions(OTHER_ID, (1,))
ACTIVE = AssignedTaskIds("0", (0, 3), (7, 9))
STANDBY = AssignedTaskIds("1_2", (1,))
SUBTOPOLOGY = Subtopology(
    "0",
    ("t", "ü"),
    ("t.*",),
    (StreamsTopic("log", 0, 3, (KeyValue("cleanup.policy", "compact"),)), StreamsTopic("log2")),
    ("r",),
    (StreamsTopic("s", 4, 1),),
    (CopartitionGroup((0, 1), (0,), (0,)), CopartitionGroup()),
)
CLASSIC = ClassicMemberMetadata(45_000, (ClassicProtocol("range", b"\x00\x03"), ClassicProtocol("x", b"")))

_VALUES: list[tuple[RecordKey, list[RecordValue]]] = [
    (
        OFFSET,
        [
            OffsetCommitValue(2**40, "mé ta 🐊", NOW_MS, 5, -1, ID),
            OffsetCommitValue(0, "", NOW_MS),
            OffsetCommitValue(7, "own time", NOW_MS, -1, NOW_MS + 60_000),
        ],
    ),
    (
        GROUP,
        [
            GroupMetadataValue("consumer", 3, "range", "c-1", NOW_MS, (MEMBER, PLAIN_MEMBER)),
            GroupMetadataValue("", 0, None, None, -1, ()),
        ],
    ),
    (ConsumerGroupMetadataKey("g"), [ConsumerGroupMetadataValue(9, -(2**62)), ConsumerGroupMetadataValue(1)]),
    (
        ConsumerGroupPartitionMetadataKey("g"),
        [
            ConsumerGroupPartitionMetadataValue(
                (
                    TopicMetadata(ID, "t", 3, (PartitionRacks(0, ("r1", "r2")), PartitionRacks(1, ()))),
                    TopicMetadata(OTHER_ID, "u", 1),
                )
            )
        ],
    ),
    (
        ConsumerGroupMemberMetadataKey("g", "m"),
        [
            ConsumerGroupMemberMetadataValue(
                "i", "rack", "c", "/127.0.0.1", ("t", "u"), "^a.*", 300_000, "uniform", None
            ),
            ConsumerGroupMemberMetadataValue(None, None, "", "", (), None, -1, None, CLASSIC),
            ConsumerGroupMemberMetadataValue("", "", "", "", ("t",), "", 0, "", ClassicMemberMetadata(0, ())),
        ],
    ),
    (
        ConsumerGroupTargetAssignmentMetadataKey("g"),
        [
            ConsumerGroupTargetAssignmentMetadataValue(4, NOW_MS),
            ConsumerGroupTargetAssignmentMetadataValue(5),
        ],
    ),
    (
        ConsumerGroupTargetAssignmentMemberKey("g", "m"),
        [
            ConsumerGroupTargetAssignmentMemberValue((TopicPartitions(ID, (0, 1, 2)),)),
            ConsumerGroupTargetAssignmentMemberValue(()),
        ],
    ),
    (
        ConsumerGroupCurrentMemberAssignmentKey("g", "m"),
        [
            ConsumerGroupCurrentMemberAssignmentValue(4, 3, 1, (EPOCHS, NO_EPOCHS), (EPOCHS,)),
            ConsumerGroupCurrentMemberAssignmentValue(-2, 3, 0, (), ()),
        ],
    ),
    (
        ConsumerGroupRegularExpressionKey("g", "^a.*"),
        [ConsumerGroupRegularExpressionValue(("a1", "a2"), 77, NOW_MS)],
    ),
    (
        ShareGroupMemberMetadataKey("g", "m"),
        [
            ShareGroupMemberMetadataValue("r", "c", "/h", ("t", "u")),
            ShareGroupMemberMetadataValue(None, "c", "/h", ()),
        ],
    ),
    (ShareGroupMetadataKey("g"), [ShareGroupMetadataValue(9, -(2**62))]),
    (
        ShareGroupTargetAssignmentMetadataKey("g"),
        [ShareGroupTargetAssignmentMetadataValue(9, NOW_MS), ShareGroupTargetAssignmentMetadataValue(9)],
    ),
    (
        ShareGroupTargetAssignmentMemberKey("g", "m"),
        [ShareGroupTargetAssignmentMemberValue((TopicPartitions(ID, (0, 2)),))],
    ),
    (
        ShareGroupCurrentMemberAssignmentKey("g", "m"),
        [ShareGroupCurrentMemberAssignmentValue(9, 8, 0, (TopicPartitions(ID, (0, 2)),))],
    ),
    (
        ShareGroupStatePartitionMetadataKey("g"),
        [
            ShareGroupStatePartitionMetadataValue(
                (TopicPartitionsInfo(ID, "t", (2,)),),
                (TopicPartitionsInfo(ID, "t", (0, 1)),),
                (TopicInfo(OTHER_ID, "u"),),
            )
        ],
    ),
    (
        StreamsGroupMetadataKey("g"),
        [
            StreamsGroupMetadataValue(9, -(2**62), 2, (KeyValue("num.standby.replicas", "1"),), 3, 4),
            StreamsGroupMetadataValue(1, 0),
        ],
    ),
    (
        StreamsGroupMemberMetadataKey("g", "m"),
        [
            StreamsGroupMemberMetadataValue(
                "i", "r", "c", "/h", 30_000, 2, "p", Endpoint("h", 65_535), (KeyValue("zone", "a"),)
            ),
            StreamsGroupMemberMetadataValue(None, None, "", "", -1, 0, "", None, ()),
        ],
    ),
    (
        StreamsGroupTargetAssignmentMetadataKey("g"),
        [StreamsGroupTargetAssignmentMetadataValue(9, NOW_MS), StreamsGroupTargetAssignmentMetadataValue(9)],
    ),
    (
        StreamsGroupTargetAssignmentMemberKey("g", "m"),
        [
            StreamsGroupTargetAssignmentMemberValue(
                (TaskIds("0", (0, 2)), TaskIds("1", (1,))), (TaskIds("2", (5,)),), ()
            )
        ],
    ),
    (
        StreamsGroupCurrentMemberAssignmentKey("g", "m"),
        [
            StreamsGroupCurrentMemberAssignmentValue(
                9, 8, 2, (ACTIVE,), (STANDBY,), (), (ACTIVE,), (), (STANDBY,)
            ),
            StreamsGroupCurrentMemberAssignmentValue(-2, 8, 1, (), (), (), (), (), ()),
        ],
    ),
    (StreamsGroupTopologyKey("g"), [Topology(3, (SUBTOPOLOGY, Subtopology("1", ("u",))))]),
]
SAMPLES: list[CoordinatorRecord] = [
    CoordinatorRecord(key, value) for key, values in _VALUES for value in (*values, None)
]
