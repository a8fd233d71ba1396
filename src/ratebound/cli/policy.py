"""The command `ratebound policy`: check a policy file, compare two of them, explain the answer to a request, import
limits of other systems, print the schema for editors."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from ratebound.cli.app import open_console
from ratebound.cli.command_group import CommandGroup
from ratebound.cli.exit_status import errors_told
from ratebound.cli.parameters import FILE as FILE_NAME
from ratebound.cli.parameters import FILE_OR_STREAM
from ratebound.cli.policy_check import Findings, check_file, show_findings
from ratebound.cli.policy_diff import changes_as_json, show_changes
from ratebound.cli.policy_explain import GivenRequest, explain_request, header_pairs, show_answers, stages_of
from ratebound.cli.policy_functions import Function, functions_from
from ratebound.errors import RateboundError
from ratebound.policy import SCHEMA_PATH, Policy, PolicyError, read_policy
from ratebound.policy.imports import SYSTEMS, import_aws, import_envoy_descriptors
from ratebound.policy.lint.known_mistakes import MISTAKES
from ratebound.policy.load.loader import load_policy
from ratebound.policy.load.url_text import is_url
from ratebound.policy.model.rule import Stage
from ratebound.policy.runtime.fetched_policy import FetchedPolicy
from ratebound.policy.runtime.policy_changes import described_changes

FORMATS = click.Choice(["text", "json"])
FILE = click.argument("file", type=FILE_NAME)
FORMAT = click.option("--format", "shape", type=FORMATS, default="text", help="Output for people or for programs.")
OUTPUT = click.option("-o", "--output", type=FILE_NAME, help="The file to write; stdout by default.")
FORCE = click.option("--force", is_flag=True, help="Overwrite an existing file.")
ENVIRON = click.option(
    "--env", "environ", multiple=True, metavar="NAME=VALUE", help="A value for ${NAME}; overrides the environment."
)
FUNCTIONS = click.option(
    "--functions",
    "module",
    metavar="MODULE",
    help="The module of the functions that the file names. Without it they are not called and find nothing.",
)


@click.group(
    cls=CommandGroup,
    sections={"Commands": ("check", "explain", "diff", "import", "schema")},
    short_help="Check, compare, explain and import policy files.",
)
def policy() -> None:
    """Check, compare, explain and import policy files, and print their schema for editors.

    \b
    Examples:
      ratebound policy check policy.yaml
      ratebound policy explain policy.yaml --method POST --path /auth/login
    """


@policy.command(short_help="Check a file for mistakes and known problems.")
@FILE
@click.option("--strict", is_flag=True, help="Exit with status 1 if there are warnings.")
@click.option("--ignore", multiple=True, metavar="NAME", help="A warning to ignore; may be given several times.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    envvar="WEB_CONCURRENCY",
    show_envvar=True,
    metavar="NUMBER",
    help="The number of server processes.",
)
@FORMAT
@ENVIRON
@FUNCTIONS
def check(
    file: str, strict: bool, ignore: tuple[str, ...], workers: int, shape: str, environ: tuple[str, ...], module: str
) -> None:
    """Check FILE: report all mistakes by line and place, and warn about known problems by name.

    Exit status: 2 if there are mistakes, 1 if there are warnings and --strict is given, else 0.

    \b
    Examples:
      ratebound policy check policy.yaml
      ratebound policy check policy.yaml --strict --ignore address-alone
      ratebound policy check policy.yaml --workers 4 --format json
    """
    with errors_told():
        for name in ignore:
            if name not in MISTAKES:
                raise RateboundError(f"unknown warning {name!r}: expected one of {', '.join(sorted(MISTAKES))}")
        found = check_file(file, functions_from(module), environ_with(environ), workers, ignore)
        if shape == "json":
            click.echo(found.json())
        elif found.problems:
            raise PolicyError(found.problems, file)
        else:
            show_findings(found, open_console())
        raise SystemExit(_status(found, strict=strict))


@policy.command(short_help="List what differs between two files, and what starts anew.")
@click.argument("old", type=FILE_NAME)
@click.argument("new", type=FILE_NAME)
@click.option("--strict", is_flag=True, help="Exit with status 1 if a count starts anew.")
@FORMAT
@ENVIRON
@FUNCTIONS
def diff(old: str, new: str, strict: bool, shape: str, environ: tuple[str, ...], module: str) -> None:
    """List what NEW changes if it replaces OLD: rules, limits, lists and settings, and which counts start anew.

    Each of them is a file or a URL, which gets the token in RATEBOUND_POLICY_TOKEN. Passwords, the salt and
    credentials in header conditions are not shown.

    \b
    Examples:
      ratebound policy diff deployed.yaml policy.yaml
      ratebound policy diff https://config.example.com/policy.yaml policy.yaml --strict
    """
    with errors_told():
        functions = functions_from(module)
        before, after = (_loaded(file, functions, environ_with(environ)) for file in (old, new))
        changes = described_changes(before, after)
        if shape == "json":
            click.echo(changes_as_json(changes))
        else:
            show_changes(old, new, changes, open_console())
        raise SystemExit(1 if strict and any(change.starts_anew for change in changes) else 0)


@policy.command(short_help="Explain which rules apply to a request, and why.")
@FILE
@click.option("--method", default="GET", metavar="METHOD", help="The method.")
@click.option("--path", required=True, metavar="PATH", help="The path as received, with or without a query.")
@click.option(
    "--header", "headers", multiple=True, metavar="'NAME: VALUE'", help="A header; may be given several times."
)
@click.option("--peer", default="192.0.2.1", metavar="ADDRESS", help="The address of the socket's other end, or unix.")
@click.option(
    "--host", default="", show_default=False, metavar="HOST", help="The host; by default that of the Host header."
)
@click.option("--user", metavar="USER", help="The user that the application has authenticated.")
@click.option("--tier", metavar="TIER", help="The client's tier.")
@click.option(
    "--identity",
    "identities",
    multiple=True,
    metavar="KIND=VALUE",
    help="An identity as a verifier would find it, for example api-key=acme or jwt:sub=42.",
)
@click.option("--body", metavar="TEXT", help="The body, for costs that are read from it.")
@click.option(
    "--stage",
    type=click.Choice(["early", "late"]),
    help="The stage to explain. By default both, if there are early rules.",
)
@FORMAT
@ENVIRON
@FUNCTIONS
def explain(
    file: str,
    method: str,
    path: str,
    headers: tuple[str, ...],
    peer: str,
    host: str,
    user: str | None,
    tier: str | None,
    identities: tuple[str, ...],
    body: str | None,
    stage: Stage | None,
    shape: str,
    environ: tuple[str, ...],
    module: str,
) -> None:
    """Explain which rules of FILE apply to a request and why, what they count by, and what the response looks like.

    Nothing is charged, and the storage of the file is never opened.

    \b
    Examples:
      ratebound policy explain policy.yaml --path /items
      ratebound policy explain policy.yaml --method POST --path /auth/login --peer 203.0.113.7
      ratebound policy explain policy.yaml --path /items --user 42 --tier pro
    """
    with errors_told():
        asked = GivenRequest(
            method, path, header_pairs(headers), peer, host, user, tier, _pairs("--identity", identities), body
        )
        loaded = load_policy(file, functions=functions_from(module), environ=environ_with(environ))
        answers = [explain_request(loaded, asked, one) for one in ([stage] if stage else stages_of(loaded))]
        show_answers(asked, answers, open_console(), as_json=shape == "json")


@policy.command("import", short_help="Convert the limits of AWS, Envoy, Kong or nginx.")
@click.argument("system", type=click.Choice(sorted(SYSTEMS)))
@click.argument("file", type=FILE_OR_STREAM)
@click.option(
    "--keys",
    multiple=True,
    metavar="PLAN=FILE",
    help="For aws: the API keys of a usage plan, to be listed under its tier; may be given several times.",
)
@click.option(
    "--descriptors",
    is_flag=True,
    help="For envoy: write rules for the same descriptors, for a service that Envoy asks, not rules for requests.",
)
@OUTPUT
@FORCE
def import_(system: str, file: str, keys: tuple[str, ...], descriptors: bool, output: str | None, force: bool) -> None:
    """Convert the limits in FILE of another system to a policy. Differences between the two are noted on stderr.

    \b
    aws    usage plans of API Gateway: the output of aws apigateway get-usage-plans;
           with --keys, the output of aws apigateway get-usage-plan-keys
    envoy  the YAML of envoyproxy/ratelimit; with --descriptors, for Ratebound as Envoy's rate limit service
    kong   a declarative configuration with the plugin rate-limiting
    nginx  limit_req and limit_conn with their zones

    A FILE of - is stdin.

    \b
    Examples:
      ratebound policy import nginx /etc/nginx/nginx.conf -o policy.yaml
      ratebound policy import envoy ratelimit.yaml --descriptors
    """
    with errors_told():
        if keys and system != "aws":
            raise RateboundError(f"--keys is for aws, not for {system}: remove it")
        if descriptors and system != "envoy":
            raise RateboundError(f"--descriptors is for envoy, not for {system}: remove it")
        text = _read(file)
        given = {plan: _read(name) for plan, name in _pairs("--keys", keys).items()}
        try:
            if descriptors:
                imported = import_envoy_descriptors(text)
            else:
                imported = import_aws(text, given) if system == "aws" else SYSTEMS[system](text)
        except PolicyError as error:
            raise PolicyError(error.problems, file) from None
        try:
            read_policy(imported.text, functions=functions_from(None), environ={})
        except PolicyError as error:
            raise RateboundError(f"{file} cannot be converted as it is:\n{error}") from None
        if output is None:
            click.echo(imported.text, nl=False)
        else:
            _write(output, imported.text, force=force)
        for lost in imported.lost:
            click.echo(f"note: {lost}", err=True)


@policy.command(short_help="Print the JSON schema of policies, for editors.")
@OUTPUT
@FORCE
def schema(output: str | None, force: bool) -> None:
    """Print the JSON schema of policies, with which editors complete keys, explain them and underline mistakes.

    Write it next to your policies, and name it in the first line of each:

    \b
    YAML  # yaml-language-server: $schema=./ratebound.schema.json
    TOML  #:schema ./ratebound.schema.json
    JSON  the key "$schema": "./ratebound.schema.json"

    \b
    Examples:
      ratebound policy schema --output ratebound.schema.json
      ratebound policy schema -o ratebound.schema.json --force
    """
    with errors_told():
        text = SCHEMA_PATH.read_text("utf-8")
        if output is None:
            click.echo(text, nl=False)
        else:
            _write(output, text, force=force)
            name = Path(output).name
            click.echo(f"written: {output}", err=True)
            click.echo(f"first line of a policy: # yaml-language-server: $schema=./{name}", err=True)


def _loaded(place: str, functions: Mapping[str, Function], environ: Mapping[str, str]) -> Policy:
    """Return the policy of a file or a URL."""
    if not is_url(place):
        return load_policy(place, functions=functions, environ=environ)
    try:
        return FetchedPolicy(place, functions=functions, environ=environ).read()
    except ValueError as error:
        raise error if isinstance(error, RateboundError) else RateboundError(str(error)) from None


def _status(found: Findings, *, strict: bool) -> int:
    return 2 if found.problems else 1 if found.warnings and strict else 0


def environ_with(given: tuple[str, ...]) -> Mapping[str, str]:
    """Return the variables of the environment, with those that --env gives. Raises RateboundError for other texts."""
    return {**os.environ, **_pairs("--env", given)}


def _pairs(option: str, given: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise RateboundError(f"{option} {text!r}: expected NAME=VALUE")
        found[name] = value
    return found


def _read(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise RateboundError(f"cannot read {file}: {error}") from None


def _write(output: str, text: str, *, force: bool) -> None:
    path = Path(output)
    if path.exists() and not force:
        raise RateboundError(f"{output} already exists: choose another name, or use --force")
    path.write_text(text, "utf-8")
