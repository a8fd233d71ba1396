"""Matching of requests: the request, the readings of its path, the conditions of a rule, and the index of rules."""
