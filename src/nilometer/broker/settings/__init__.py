"""The keys of ``server.properties``, and the settings of this broker."""
