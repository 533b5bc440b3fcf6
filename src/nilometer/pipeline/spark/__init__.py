"""Starts Spark: ``java`` finds its Java, ``spark_session`` builds the session, ``executors`` gives executors
on other machines what they need.
"""
