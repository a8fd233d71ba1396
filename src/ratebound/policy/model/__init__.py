"""A policy as objects: the policy, its rules and its lists of clients. Everything is checked at construction."""
