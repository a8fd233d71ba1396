"""Identities: the sources they come from, and the choice of the one that a rule counts by."""
