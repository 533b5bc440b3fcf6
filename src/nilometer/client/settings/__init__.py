"""What a client may be told, in Kafka's keys: how a key is declared, and the keys that all clients have."""
