"""Replay of access logs: the decisions that a policy would have made, on the clock of the log."""
