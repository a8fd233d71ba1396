"""Write the reference pages that are made from the program itself: docs/reference/policy-schema.md and cli.md.

Run `python tools/write_reference.py` after a change of the policy schema or of a command. A test says when a page is
stale.
"""

import inspect
import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "src"))

import click  # noqa: E402

from ratebound.cli.all_commands import all_commands  # noqa: E402
from ratebound.cli.command_group import CommandGroup  # noqa: E402
from ratebound.policy.schema import SCHEMA_PATH  # noqa: E402

PAGES = ROOT / "docs" / "reference"
Schema = dict[str, Any]

POLICY_HEAD = """\
# Policy schema

Every key of a policy file. [Policies](../guides/policy.md) explains how they work together.

This page is made from the JSON schema that the loader and editors use. To complete and check policies in your editor,
write the schema next to them, and name it in the first line of each policy:

```console
$ ratebound policy schema --output ratebound.schema.json
```

| format | how a policy names its schema |
|---|---|
| YAML | the first line is `# yaml-language-server: $schema=./ratebound.schema.json` |
| TOML | the first line is `#:schema ./ratebound.schema.json` |
| JSON | the key `"$schema": "./ratebound.schema.json"` |

Editors read these lines with yaml-language-server and taplo; in VS Code these are the extensions "YAML" and "Even
Better TOML". Write the schema again after an upgrade of Ratebound.

Every value may be a reference to the environment: `${NAME}`, or `${NAME:-default}`. An unknown key is an error, in
editors and when the policy is loaded. A key with a star is required.
"""

# The objects in the order of the page: the heading, and where the object stands.
OBJECTS = {
    "policy": ("The policy", "The file itself."),
    "rule": ("Rules", "An entry of `rules`."),
    "match": (
        "Conditions",
        "`match` of a rule, and an entry of `exempt`. A request must meet all conditions that are given.",
    ),
    "identity": ("Identities", "An entry of `identities`, by its name."),
    "verify": ("Verifiers", "`verify` of an identity, with more than a function."),
    "override": ("Overrides", "An entry of `overrides`. It has either `limits` or a `tier`."),
    "penalty": ("Penalties", "An entry of `penalties`, by its name."),
    "statuses": ("Statuses", "`charge` and `strike` of a rule, by the status of the response."),
    "charged_bytes": ("Charge by size", "`charge` of a rule, by the size of the response."),
    "charged_header": ("Charge by header", "`charge` of a rule, by a header of the response."),
    "slice": ("Slices", "`slice` of a rule."),
    "call": ("Functions", "A function of the application, wherever one is allowed."),
    "computed": ("Limits from a function", "`limits` of a rule."),
    "headers": ("Headers", "`headers` of the policy."),
    "rejection": ("Rejections", "`rejection` of the policy."),
    "trusted": ("Proxies", "`trusted` of the policy."),
    "adaptive": ("Overload", "`adaptive` of the policy. It has at least one of the first four."),
    "concurrent": ("Concurrent requests", "`concurrent` of the policy, with more than `auto`."),
    "descriptor": ("Descriptors", "An entry of `descriptors`."),
    "long_entry": (
        "Entries of descriptors",
        "An entry of `entries` of a descriptor, with more than a key and a value.",
    ),
}

TYPES = {"string": "text", "integer": "whole number", "number": "number", "boolean": "true or false", "null": "nothing"}


def policy_page(schema: Schema) -> str:
    """Return the page about the keys of a policy, with a table for each object of the schema."""
    kinds: dict[str, Schema] = schema["$defs"]
    parts = [POLICY_HEAD]
    for name, (heading, where) in OBJECTS.items():
        kind = kinds[name]
        needed = kind.get("required", ())
        lines = [f"## {heading}\n", f"{where}\n", "| key | type | default | description |", "|---|---|---|---|"]
        for key, described in kind["properties"].items():
            default = f"`{_yaml(described['default'])}`" if "default" in described else ""
            text = _description(described)
            lines.append(f"| `{key}`{' *' if key in needed else ''} | {_type(described, kinds)} | {default} | {text} |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _description(described: Schema) -> str:
    """Return the description of a key, with its examples behind it."""
    text = _escaped(described["description"])
    examples = [f"`{_yaml(one)}`" for one in described.get("examples", ())]
    return f"{text} For example {', '.join(examples)}." if examples else text


def _yaml(value: Any) -> str:
    """Return a value as a policy writes it, in one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{name}: {_yaml(one)}" for name, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_yaml, value)) + "]"
    return json.dumps(value) if value is None or isinstance(value, bool | int | float) or value == "" else str(value)


def _type(described: Schema, kinds: dict[str, Schema]) -> str:
    """Return the values that a key takes, in words, each once."""
    found = list(dict.fromkeys(_types(described, kinds)))
    of_these = [one for one in found if one.startswith("list of ") and one != f"list of {found[0]}"]
    if of_these and of_these[0] == f"list of {_joined(found[: found.index(of_these[0])])}":
        found[found.index(of_these[0])] = "a list of these"
    return _joined(found)


def _joined(found: list[str]) -> str:
    return " or ".join([", ".join(found[:-1]), found[-1]]) if len(found) > 1 else "".join(found)


def _types(described: Schema, kinds: dict[str, Schema]) -> list[str]:
    if "$ref" in described:
        name = described["$ref"].rpartition("/")[2]
        if name in OBJECTS:
            return [f"[mapping](#{OBJECTS[name][0].lower().replace(' ', '-')})"]
        return [] if name == "reference" else _types(kinds[name], kinds)
    if "anyOf" in described:
        return [one for part in described["anyOf"] for one in _types(part, kinds)]
    if "enum" in described or "const" in described:
        return [f"`{_yaml(one)}`" for one in described.get("enum", [described.get("const")])]
    if described["type"] == "array":
        return [f"list of {_type(described['items'], kinds)}"]
    if described["type"] == "object":
        return [f"mapping of names to {_type(described['additionalProperties'], kinds)}"]
    types = described["type"]
    return [TYPES[one] for one in (types if isinstance(types, list) else [types])]


CLI_HEAD = """\
# The command `ratebound`

Every command with its options, as `ratebound COMMAND --help` shows them. Install it with
`pip install "ratebound[cli]"`; commands that need more packages say which. This page is made from the commands
themselves.

Wrong usage prints an error to stderr and exits with status 2.

## Completion

`ratebound completion SHELL` prints the script with which bash, zsh or fish complete commands, options, files, URLs of
storages and names of algorithms:

```console
$ ratebound completion bash > ~/.local/share/bash-completion/completions/ratebound
$ ratebound completion zsh > "${fpath[1]}/_ratebound"
$ ratebound completion fish > ~/.config/fish/completions/ratebound.fish
```

Then start a new shell. bash must be 4.4 or later, with the package bash-completion; without that package, put
`eval "$(ratebound completion bash)"` into `~/.bashrc`. bash ends a word at a colon: behind the colon of a URL,
nothing is completed there.
"""


def cli_page(app: CommandGroup) -> str:
    """Return the page about all commands."""
    commands = _commands_of(app)
    parts = [CLI_HEAD, _overview(commands)]
    for heading, names in app.sections.items():
        parts += [f"## {heading}\n"]
        parts += [part for name in names for part in _command(commands[name], f"ratebound {name}", 3)]
    return "\n".join(parts)


def _commands_of(group: click.Group) -> dict[str, click.Command]:
    """Return the commands of a group by name, in the order of its help."""
    ctx = click.Context(group)
    return {name: command for name in group.list_commands(ctx) if (command := group.get_command(ctx, name))}


def _overview(commands: dict[str, click.Command]) -> str:
    rows = [f"| [`{name}`](#ratebound-{name}) | {one.get_short_help_str(200)} |" for name, one in commands.items()]
    return "\n".join(["## Commands\n", "| command | what it is for |", "|---|---|", *rows]) + "\n"


def _command(command: click.Command, path: str, depth: int) -> list[str]:
    """Return the parts of the page about a command, and about all commands in it."""
    ctx = click.Context(command, info_name=path)
    usage = " ".join([path, *command.collect_usage_pieces(ctx)])
    parts = [f"{'#' * min(depth, 5)} {path}\n", _prose(command.help or ""), f"```text\n{usage}\n```\n"]
    rows = [
        _option(one, ctx)
        for one in command.get_params(ctx)
        if isinstance(one, click.Option) and "--help" not in one.opts
    ]
    if rows:
        parts.append("\n".join(["| option | default | meaning |", "|---|---|---|", *rows]) + "\n")
    if isinstance(command, click.Group):
        for name, one in _commands_of(command).items():
            parts += _command(one, f"{path} {name}", depth + 1)
    return parts


def _prose(text: str) -> str:
    """Return the help of a command: paragraphs, and blocks of code for what is shown as it is."""
    parts = []
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        lines = paragraph.split("\n")
        if lines[0] != "\b":
            parts.append(_escaped(paragraph) + "\n")
        elif lines[1] == "Examples:":
            parts.append("\n".join(["```console", *(f"$ {line.strip()}" for line in lines[2:]), "```\n"]))
        else:
            parts.append("\n".join(["```text", *lines[1:], "```\n"]))
    return "\n".join(parts)


def _option(option: click.Option, ctx: click.Context) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag or option.flag_value == "json" else f" {option.make_metavar(ctx)}"
    given = None if option.is_flag else option.get_default(ctx)
    default = f"`{given}`" if isinstance(given, str | int | float) and given != "" else ""
    variable = f" Environment: `{option.envvar}`." if option.envvar else ""
    told = re.search(r"  \[default: (.*)\]$| Default: (.*)\.$", option.help or "")
    help_text = (option.help or "")[: None if told is None else told.start()]
    default = default if told is None else f"`{told[1] or told[2]}`"
    needed = " Required." if option.required else ""
    shown = (names + value).replace("|", "\\|")
    return f"| `{shown}` | {default} | {_escaped(help_text)}{needed}{variable} |"


def _escaped(text: str) -> str:
    for sign in "<*|":
        text = text.replace(sign, f"\\{sign}")
    return text


def pages() -> dict[Path, str]:
    """Return the text of every page by its path."""
    schema = json.loads(SCHEMA_PATH.read_text("utf-8"))
    return {PAGES / "policy-schema.md": policy_page(schema), PAGES / "cli.md": cli_page(all_commands())}


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text, "utf-8")
