"""The pages of gRPC and RESP: every method, field, command and error is there, and their examples work."""

import re
import shlex
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from ratebound.service import envoy_messages
from ratebound.service import grpc as grpc_statuses
from ratebound.service.resp_commands import DECISION_FIELDS, FACTS
from tests.documentation.messages import first_texts, is_in_source, is_quoted, quoted_messages
from tests.documentation.pages import all_blocks, blocks, read
from tests.service.resp_server import resp_server
from tests.service.running_service import running_service

GRPC, RESP = "docs/reference/grpc.md", "docs/reference/resp.md"
PROMPT = "127.0.0.1:4292> "
DESCRIPTORS = """
descriptors:
  - {name: address, domain: edge, entries: [remote_address], limits: 1/hour}
"""
Field = descriptor_pb2.FieldDescriptorProto


@pytest.mark.parametrize("page", [GRPC, RESP])
def test_the_errors_of_a_wire_format_are_in_the_source(page: str) -> None:
    assert [message for message in quoted_messages(page) if not is_in_source(message)] == []


@pytest.mark.parametrize(("page", "name"), [(GRPC, "GrpcError"), (GRPC, "status_only"), (RESP, "_Wrong")])
def test_every_error_of_a_wire_format_is_on_its_page(page: str, name: str) -> None:
    found = {text for text in first_texts()[name] if sum(map(str.isalpha, text)) > 6}
    assert {text for text in found if not is_quoted(text, quoted_messages(page))} == set()


def proto_messages() -> dict[str, list[tuple[bool, str, str, int]]]:
    """Return the messages of the page: for each field, whether it is repeated, its type, name and number."""
    (text,) = (block.text for block in all_blocks(GRPC) if block.title == "ratelimit.proto")
    found = re.findall(r"^message (\w+) \{([^}]*)\}", text, re.MULTILINE)
    field = r"(repeated )?(\w+) (\w+) = (\d+);"
    return {name: [(bool(a), b, c, int(d)) for a, b, c, d in re.findall(field, body)] for name, body in found}


def message_module() -> Any:
    """Return the messages of the page, as protoc would make them."""
    file = descriptor_pb2.FileDescriptorProto(name="ratelimit.proto", package="page", syntax="proto3")
    for name, fields in proto_messages().items():
        message = file.message_type.add(name=name)
        for is_repeated, kind, field, number in fields:
            label = Field.LABEL_REPEATED if is_repeated else Field.LABEL_OPTIONAL
            added = message.field.add(name=field, number=number, label=label)
            if kind in proto_messages():
                added.type, added.type_name = Field.TYPE_MESSAGE, f".page.{kind}"
            else:
                added.type = getattr(Field, f"TYPE_{kind.upper()}")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    made = {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"page.{name}")) for name in proto_messages()
    }
    return type("messages", (), made)


def test_the_messages_of_the_page_are_those_of_the_service() -> None:
    known = {
        name: {(field, number) for field, number, _ in fields} for name, fields in envoy_messages._MESSAGES.items()
    }
    page = {name: {(field, number) for _, _, field, number in fields} for name, fields in proto_messages().items()}
    assert {"RateLimitRequest", "RateLimitResponse"} <= set(page)
    assert {name: fields - known[name] for name, fields in page.items() if not fields <= known[name]} == {}
    assert page["RateLimitRequest"] == known["RateLimitRequest"]
    assert page["RateLimitDescriptor"] == known["RateLimitDescriptor"]


def test_every_method_and_status_of_grpc_is_on_its_page() -> None:
    page = read(GRPC)
    methods = [envoy_messages.METHOD, *grpc_statuses.health_methods(lambda: True)]
    assert [method for method in methods if f"| `{method.decode()}` |" not in page] == []
    for name, number in re.findall(r"^\| ([A-Z_]+) \| (\d+) \|", page, re.MULTILINE):
        assert getattr(grpc_statuses, name) == int(number)


def test_the_example_with_grpcio_asks_a_running_service() -> None:
    (code,) = blocks(GRPC, "python")
    names: dict[str, Any] = {}
    exec(code, names)
    with (
        running_service("--grpc", "0", policy=DESCRIPTORS) as service,
        grpc.insecure_channel(service.address("grpc")) as channel,
    ):
        grpc.channel_ready_future(channel).result(10)
        ask = names["is_allowed"]
        assert [ask(message_module(), channel, "203.0.113.7") for _ in range(2)] == [True, False]
        assert ask(message_module(), channel, "203.0.113.8")


def test_every_command_and_field_of_resp_is_on_its_page() -> None:
    page = read(RESP)
    assert {facts.name for facts in FACTS if f"[`{facts.name.upper()}`](" not in page} == set()
    assert {field for field in DECISION_FIELDS if f"`{field}`" not in page} == set()
    assert f"(integer) {len(FACTS)}\n" in page


def shown(answer: Any, is_status: bool = False) -> list[str]:
    """Return an answer as redis-cli shows it."""
    if isinstance(answer, dict | list) and not answer:
        return ["(empty)"]
    if isinstance(answer, dict):
        return [f"{n}# {shown(key)[0]} => {shown(value)[0]}" for n, (key, value) in enumerate(answer.items(), 1)]
    if isinstance(answer, list):
        return [f"{n}) {shown(value)[0]}" for n, value in enumerate(answer, 1)]
    if answer is None:
        return ["(nil)"]
    if isinstance(answer, int):
        return [f"(integer) {answer}"]
    return [answer.decode() if is_status else f'"{answer.decode()}"']


def test_the_examples_of_resp_are_answered_as_the_page_says() -> None:
    sessions = [block for block in blocks(RESP, "text") if block.startswith(PROMPT)]
    asked = [part.splitlines() for block in sessions for part in block.split(PROMPT)[1:]]
    assert len(asked) > 10
    with resp_server() as server, server.connect() as peer:
        for command, *expected in asked:
            answer = peer.ask(*shlex.split(command))
            found = shown(answer, is_status=answer in (b"OK", b"PONG"))
            for line, right in zip(found, expected, strict=expected != ["…"]):
                assert line.startswith(right.partition("…")[0]), (command, found)
