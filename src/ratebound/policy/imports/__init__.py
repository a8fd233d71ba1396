"""From other systems' configuration to a policy: text in, the text of a policy and what was lost on the way out.

Each file knows one system. What cannot be said in a policy is told, never dropped in silence.
"""

from collections.abc import Callable

from ratebound.policy.imports.draft import Imported
from ratebound.policy.imports.envoy import import_envoy
from ratebound.policy.imports.kong import import_kong
from ratebound.policy.imports.nginx import import_nginx

SYSTEMS: dict[str, Callable[[str], Imported]] = {"envoy": import_envoy, "nginx": import_nginx, "kong": import_kong}

__all__ = ["SYSTEMS", "Imported", "import_envoy", "import_kong", "import_nginx"]
