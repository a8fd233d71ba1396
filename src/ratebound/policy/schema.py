"""The keys that a policy file may have, from schema.json. Editors use that file too, for completion."""

import json
from pathlib import Path

SCHEMA_PATH = Path(__file__).with_name("schema.json")
"""The path of the JSON schema of policy files."""

# The keys of each kind of mapping in a file, by its name under "$defs".
KEYS: dict[str, frozenset[str]] = {
    name: frozenset(kind["properties"])
    for name, kind in json.loads(SCHEMA_PATH.read_text("utf-8"))["$defs"].items()
    if "properties" in kind
}
