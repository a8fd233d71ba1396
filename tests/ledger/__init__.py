"""Tests of the usage ledger."""
