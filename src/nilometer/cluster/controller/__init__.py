"""The controller's decisions: ``decide_*(image, request) -> Decision(units, reply)``, split by noun.

Pure functions on an image that they never change. Every change of a partition, whatever the reason, goes
through :mod:`~nilometer.cluster.controller.partition_change`: that page is where to read who leads and why.
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
from nilometer.cluster.controller.decision import OK, Decision, Outcome
from nilometer.cluster.controller.office import (
    BrokerEvent,
    BrokersDown,
    BrokerUp,
    broker_events,
    decide_cluster_defaults,
    decide_repair,
    office_entry,
)
from nilometer.cluster.controller.producer_ids import ProducerIdBlock, decide_allocate_producer_ids
from nilometer.cluster.controller.topics import (
    CreatedTopic,
    MorePartitions,
    NewTopic,
    TopicDefaults,
    decide_create_partitions,
    decide_create_topics,
    decide_delete_topics,
)

__all__ = [
    "OK",
    "AlterResource",
    "BrokerEvent",
    "BrokerRegistration",
    "BrokerUp",
    "BrokersDown",
    "ConfigAlteration",
    "ConfigDefinitions",
    "ConfigOperation",
    "CreatedTopic",
    "Decision",
    "MorePartitions",
    "NewTopic",
    "Outcome",
    "ProducerIdBlock",
    "ShutdownProgress",
    "TopicDefaults",
    "broker_events",
    "check_registration",
    "decide_allocate_producer_ids",
    "decide_alter_configs",
    "decide_broker_up",
    "decide_brokers_down",
    "decide_cluster_defaults",
    "decide_controlled_shutdown",
    "decide_create_partitions",
    "decide_create_topics",
    "decide_delete_topics",
    "decide_repair",
    "decide_unregister_broker",
    "office_entry",
]
