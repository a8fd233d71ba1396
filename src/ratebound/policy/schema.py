"""The keys that a policy file may have. schema.json is the truth: editors complete from it, the loader checks by it."""

import json
from pathlib import Path

SCHEMA_PATH = Path(__file__).with_name("schema.json")

# For each kind of mapping in a file, its keys.
KEYS: dict[str, frozenset[str]] = {
    name: frozenset(kind["properties"])
    for name, kind in json.loads(SCHEMA_PATH.read_text("utf-8"))["$defs"].items()
    if "properties" in kind
}
