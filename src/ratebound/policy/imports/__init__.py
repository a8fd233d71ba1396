"""Importers that turn the configuration of AWS API Gateway, Envoy, Kong or nginx into the text of a policy.

Each importer returns a policy and a list of everything that a policy cannot express: nothing is dropped silently.
"""

from collections.abc import Callable

from ratebound.policy.imports.aws import import_aws
from ratebound.policy.imports.draft import Imported
from ratebound.policy.imports.envoy import import_envoy, import_envoy_descriptors
from ratebound.policy.imports.kong import import_kong
from ratebound.policy.imports.nginx import import_nginx

SYSTEMS: dict[str, Callable[[str], Imported]] = {
    "aws": import_aws,
    "envoy": import_envoy,
    "kong": import_kong,
    "nginx": import_nginx,
}
"""The importers by the names that `ratebound policy import` takes."""

__all__ = [
    "SYSTEMS",
    "Imported",
    "import_aws",
    "import_envoy",
    "import_envoy_descriptors",
    "import_kong",
    "import_nginx",
]
