"""Change events of databases, as rows: ``connect_values`` converts values, ``change_events`` decodes records,
and ``changed_rows`` orders the changes of a row.
"""
