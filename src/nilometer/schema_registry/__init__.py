"""Keys and values whose schemas are in a registry with Confluent's interface.

``client`` asks the registry, ``framing`` has the bytes before such a value, ``avro`` reads and
writes Avro, ``protobuf`` reads Protobuf, and ``decoding`` makes JSON of each of them.
"""
