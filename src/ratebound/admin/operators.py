"""Operators and their roles."""

from typing import Literal, NamedTuple

Role = Literal["read", "write"]
ROLES: tuple[Role, ...] = ("read", "write")  # each may do what the ones before it may


class Operator(NamedTuple):
    """A person or a program that acts on a dashboard or the admin API.

    Attributes:
        name: The name in the log of changes.
        role: `"read"` may look at everything, `"write"` may change it.

    Examples:
        >>> from ratebound.web import Operator
        >>> Operator("alice", "read").may("write")
        False
    """

    name: str
    role: Role

    def may(self, role: Role) -> bool:
        """Return True if this operator has a role, or one above it.

        Args:
            role: `"read"` or `"write"`.
        """
        return ROLES.index(self.role) >= ROLES.index(role)
