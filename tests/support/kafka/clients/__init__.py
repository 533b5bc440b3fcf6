"""Kafka clients of other projects, behind one small interface.

Each uses its own default configuration, except for the options that a test gives, so that tests show what
users get.
"""

from .aio import AiokafkaClient
from .confluent import ConfluentClient
from .face import KafkaClient, Options, Read, Refused, Written
from .java import JavaClient
from .kcat import KcatClient
from .pure_python import KafkaPythonClient

__all__ = [
    "AiokafkaClient",
    "ConfluentClient",
    "JavaClient",
    "KafkaClient",
    "KafkaPythonClient",
    "KcatClient",
    "Options",
    "Read",
    "Refused",
    "Written",
]
