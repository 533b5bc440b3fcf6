"""Authentication of clients before their first request: SASL on the listeners that have it."""
