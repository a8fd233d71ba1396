"""A policy at work: compiled rules, the fast and the general path, the gate, verdicts and reloads."""
