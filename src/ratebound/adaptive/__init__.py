"""Limits that follow the load of this process."""
