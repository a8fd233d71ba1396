"""Requests and conditions: the readings of a path, the conditions of a rule, and the index that finds rules."""
