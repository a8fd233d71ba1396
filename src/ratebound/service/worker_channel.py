"""Questions of the control plane to workers: one question and one answer over a Unix socket, each a line of JSON.

The socket is in the private folder of the run. A question is {"ask": NAME, …}; the other fields are the arguments. An
answer is {"answer": VALUE}, or {"error": TEXT}.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

log = logging.getLogger("ratebound.service")
MOST = 16 * 1024 * 1024  # bytes of one line
Question = Callable[[Mapping[str, Any]], Coroutine[Any, Any, Any]]


class WorkerSilent(Exception):
    """A worker did not answer. `was_asked` is True if it may have read the question, and may have acted on it."""

    def __init__(self, text: str, *, was_asked: bool) -> None:
        super().__init__(text)
        self.was_asked = was_asked


async def answer_questions(path: str, questions: Mapping[str, Question]) -> asyncio.AbstractServer:
    """Answer questions on a Unix socket, by name. Returns the server, which its owner closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                writer.write(await _answered(line, questions))
                await writer.drain()
        except (OSError, ValueError, asyncio.CancelledError):
            pass  # the other end has gone or sends no lines, or this worker ends
        finally:
            writer.close()

    return await asyncio.start_unix_server(serve, path, limit=MOST)


async def _answered(line: bytes, questions: Mapping[str, Question]) -> bytes:
    try:
        asked = json.loads(line)
        answer = {"answer": await questions[asked.pop("ask")](asked)}
    except Exception:  # the control plane must be told of any failure
        log.exception("a question of the control plane could not be answered")
        answer = {"error": "it failed, see the log"}
    return json.dumps(answer).encode() + b"\n"


async def ask_worker(path: str, question: str, seconds: float = 2.0, /, **arguments: Any) -> Any:
    """Ask a worker, and return its answer. Raises WorkerSilent."""
    was_asked = False
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(path, limit=MOST)
            try:
                was_asked = True
                writer.write(json.dumps({"ask": question, **arguments}).encode() + b"\n")
                line = await reader.readline()
                if not line:
                    raise OSError("it has closed the connection")
            finally:
                writer.close()
        found = json.loads(line)
    except TimeoutError:
        raise WorkerSilent(f"no answer within {seconds:g} s", was_asked=was_asked) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise WorkerSilent(f"no answer: {reason}", was_asked=was_asked) from None
    if "error" in found:
        raise WorkerSilent(found["error"], was_asked=True)
    return found["answer"]


async def ask_any_worker(
    paths: Sequence[str], question: str, seconds: float = 2.0, /, *, can_repeat: bool, **arguments: Any
) -> Any:
    """Ask one worker after the other until one answers, and return its answer. Raises WorkerSilent.

    A question that changes something must not be repeated: without `can_repeat`, the next worker is asked only if this
    one did not accept the connection.
    """
    silent = WorkerSilent("there is no worker", was_asked=False)
    for path in paths:
        try:
            return await ask_worker(path, question, seconds, **arguments)
        except WorkerSilent as error:
            silent = error
            if error.was_asked and not can_repeat:
                break
    raise silent
