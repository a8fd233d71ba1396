"""Shared documents in Redis: one string for each, `version:content`, in clear and without an expiry.

A secret does not hide them: operators must be able to read them with any client of Redis. Each has one key, so that a
Cluster decides a write in one hash slot.
"""

from typing import Any

from ratebound.errors import StorageError
from ratebound.storage import Document
from ratebound.storage.redis.error_reply import FOREIGN
from ratebound.storage.redis.keys import Keys
from ratebound.storage.redis.script import NOT_OURS, NotOurs

MOST_DIGITS = 15  # of a version

# KEYS: the document. ARGV: the version that the writer has read, and the new string.
WRITE = """
local known = redis.call('GET', KEYS[1])
local version = '0'
if known then
  version = string.match(known, '^(%d+):')
  if not version or #version > 15 then return redis.error_reply('FOREIGN document') end
end
if version ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1
"""


def document_key(keys: Keys, name: str) -> bytes:
    """Return the name of a document in Redis: for example `rb1:{1f3}document:blocks`."""
    return f"{keys.prefix}{keys.tag(name)}document:{name}".encode("utf-8", "surrogatepass")


def write_command(keys: Keys, name: str, content: bytes, version: int) -> list[Any]:
    """Return the command that writes a document, if it still has that version."""
    new = b"%d:%s" % (version + 1, content)
    return ["EVAL", WRITE, b"1", document_key(keys, name), b"%d" % version, new]


def document_in(reply: Any) -> Document:
    """Return the version and the content of a document from the reply to GET.

    Raises NotOurs if the server does not answer like Redis, and StorageError if only the value is not a document.
    """
    if reply is None:
        return 0, b""
    if not isinstance(reply, bytes):
        raise NotOurs(NOT_OURS)
    version, colon, content = reply.partition(b":")
    if not colon or not version.isdigit() or len(version) > MOST_DIGITS:
        raise StorageError(FOREIGN, undone=True, outage=False)
    return int(version), content


def documents_in(reply: Any, count: int) -> list[Document]:
    """Return documents from the reply to MGET for `count` of them. Raises like `document_in`."""
    if not isinstance(reply, list | tuple) or len(reply) != count:
        raise NotOurs(NOT_OURS)
    return [document_in(one) for one in reply]


def is_written(reply: Any) -> bool:
    """Return True if the document was written, from the reply to the script. Raises NotOurs."""
    if type(reply) is not int:
        raise NotOurs(NOT_OURS)
    return reply == 1
