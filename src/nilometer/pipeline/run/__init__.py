"""Runs the shipped pipelines: from sample input to the delivery of the messages that they produce.

``catalogue`` lists the pipelines, ``samples`` generates input for them, ``runner`` starts them,
``run_record`` keeps the state of their runs on disk, ``run_report`` writes their results as an HTML page, and
``webhook_delivery`` delivers the messages of a topic to a webhook.
"""
