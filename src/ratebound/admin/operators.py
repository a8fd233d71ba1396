"""Operators and their roles."""

from typing import Literal, NamedTuple

Role = Literal["read", "write"]
ROLES: tuple[Role, ...] = ("read", "write")  # each may do what the ones before it may


class Operator(NamedTuple):
    """A person or a program that acts: the name in the log of changes, and the role."""

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Return True if this operator has a role, or one above it."""
        return ROLES.index(self.role) >= ROLES.index(role)
