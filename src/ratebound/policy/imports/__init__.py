"""Importers that turn the configuration of nginx, Envoy or Kong into the text of a policy.

Each importer returns a policy and a list of everything that a policy cannot express: nothing is dropped silently.
"""

from collections.abc import Callable

from ratebound.policy.imports.draft import Imported
from ratebound.policy.imports.envoy import import_envoy
from ratebound.policy.imports.kong import import_kong
from ratebound.policy.imports.nginx import import_nginx

SYSTEMS: dict[str, Callable[[str], Imported]] = {"envoy": import_envoy, "nginx": import_nginx, "kong": import_kong}

__all__ = ["SYSTEMS", "Imported", "import_envoy", "import_kong", "import_nginx"]
