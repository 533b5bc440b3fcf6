"""Kafka clients of other projects, behind one small interface.

Each keeps its own default configuration but for what a test names, so that what is shown is what users get.
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
