"""Change events of databases, as rows: ``change_events`` decodes records and converts their values, and
``changed_rows`` orders the changes of a row.
"""
