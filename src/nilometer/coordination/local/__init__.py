"""The embedded coordination store: a folder of put-if-absent files, for brokers on one machine."""
