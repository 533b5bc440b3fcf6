"""Starts Spark: ``java`` finds its Java, ``spark_session`` builds the session.

``executors`` packs this package for executors on machines where it is not installed.
"""
