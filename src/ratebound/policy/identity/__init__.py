"""Identities: where they come from, and which of them a rule counts by."""
