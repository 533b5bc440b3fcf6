"""Keys and values whose schemas are in a registry with Confluent's interface.

``client`` asks the registry, ``avro`` reads and writes Avro, and ``decoding`` makes JSON of Avro, JSON Schema
and Protobuf.
"""
