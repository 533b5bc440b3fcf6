"""The controller's decisions: functions ``decide_*(image, request) -> Decision(units, reply)``.

They read the image and never change it; the result is the records to append and the response. A *unit* is a
group of records that is applied together. Every change of a partition is made by
:mod:`~nilometer.cluster.controller.partition_change`, which elects the leader.
"""

from nilometer.cluster.controller.brokers import (
    BrokerRegistration,
    ShutdownProgress,
    check_registration,
    decide_broker_up,
    decide_brokers_down,
    decide_controlled_shutdown,
    decide_unregister_broker,
)
from nilometer.cluster.controller.configs import (
    AlterResource,
    ConfigAlteration,
    ConfigDefinitions,
    ConfigOperation,
    decide_alter_configs,
)
from nilometer.cluster.controller.controllership import (
    BrokerEvent,
    BrokersDown,
    BrokerUp,
    broker_events,
    controllership_entry,
    decide_cluster_defaults,
    decide_repair,
)
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.controller.elections import (
    ElectedPartition,
    ElectionType,
    decide_elect_leaders,
    decide_preferred_leaders,
    preferred_imbalance,
)
from nilometer.cluster.controller.features import FeatureUpdate, UpgradeType, decide_update_features
from nilometer.cluster.controller.isr_changes import (
    AlteredPartition,
    IsrChange,
    IsrMember,
    decide_alter_partitions,
)
from nilometer.cluster.controller.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from nilometer.cluster.controller.reassignments import (
    OngoingReassignment,
    ReassignedPartition,
    Reassignment,
    decide_alter_reassignments,
    list_reassignments,
)
from nilometer.cluster.controller.topics import (
    CreatedTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
    decide_internal_topic_growth,
    fitting_replication_factor,
    internal_topic,
)

__all__ = [
    "OK",
    "AlterResource",
    "AlteredPartition",
    "BrokerEvent",
    "BrokerRegistration",
    "BrokerUp",
    "BrokersDown",
    "ConfigAlteration",
    "ConfigDefinitions",
    "ConfigOperation",
    "CreatedTopic",
    "Decision",
    "ElectedPartition",
    "ElectionType",
    "FeatureUpdate",
    "IsrChange",
    "IsrMember",
    "MorePartitions",
    "NewTopic",
    "OngoingReassignment",
    "Outcome",
    "ProducerIdBlock",
    "ReassignedPartition",
    "Reassignment",
    "Refusal",
    "ShutdownProgress",
    "TopicDefaults",
    "UpgradeType",
    "broker_events",
    "check_registration",
    "controllership_entry",
    "decide_allocate_producer_ids",
    "decide_alter_configs",
    "decide_alter_partitions",
    "decide_alter_reassignments",
    "decide_broker_up",
    "decide_brokers_down",
    "decide_cluster_defaults",
    "decide_controlled_shutdown",
    "decide_create_partitions",
    "decide_create_topics",
    "decide_delete_topics",
    "decide_elect_leaders",
    "decide_internal_topic_growth",
    "decide_preferred_leaders",
    "decide_repair",
    "decide_unregister_broker",
    "decide_update_features",
    "fitting_replication_factor",
    "internal_topic",
    "list_reassignments",
    "preferred_imbalance",
]
