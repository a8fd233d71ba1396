"""What the benchmark of the dashboard puts on the service, in processes of its own: paced requests, or open dashboards.

`load PORT RATE SECONDS` prints how many requests were answered, and how many of them were denied. `streams PORT TOKEN
COUNT` prints a line when all streams have had an event, and, when its input is closed, how many events each has had.
"""

import asyncio
import sys
import time

CONNECTIONS = 4
BATCH = 0.01  # seconds of requests that are sent at once
CLIENTS = 500


async def load(port: int, rate: int, seconds: float) -> tuple[int, int]:
    """Send requests at a rate over a few connections. Return how many were answered, and denied."""
    found = await asyncio.gather(*(_send(port, rate // CONNECTIONS, seconds, place) for place in range(CONNECTIONS)))
    return sum(answered for answered, _ in found), sum(denied for _, denied in found)


async def _send(port: int, rate: int, seconds: float, place: int) -> tuple[int, int]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    requests = [_request(client) for client in range(place, CLIENTS, CONNECTIONS)]
    sent = 0

    async def count() -> tuple[int, int]:
        answered = denied = 0
        tail = b""
        while data := await reader.read(1 << 20):
            data = tail + data
            answered += data.count(b"HTTP/1.1 ")
            denied += data.count(b"HTTP/1.1 429")
            tail = data[-11:]  # may begin the next status line
            answered -= tail.count(b"HTTP/1.1 ")
            denied -= tail.count(b"HTTP/1.1 429")
        return answered + tail.count(b"HTTP/1.1 "), denied + tail.count(b"HTTP/1.1 429")

    counting = asyncio.create_task(count())
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        due = int(passed * rate)
        if due > sent:
            writer.write(b"".join(requests[number % len(requests)] for number in range(sent, due)))
            sent = due
            await writer.drain()
        await asyncio.sleep(BATCH)
    writer.write_eof()
    found = await counting
    writer.close()
    return found


def _request(client: int) -> bytes:
    """Return a check. One of ten clients asks for what is denied."""
    path = "/v1/check/denied" if client % 10 == 0 else f"/v1/check/api/{client % 8}/items"
    address = f"10.0.{client // 250}.{client % 250}"
    return f"GET {path} HTTP/1.1\r\nhost: localhost\r\nx-forwarded-for: {address}\r\n\r\n".encode()


async def streams(port: int, token: str, count: int) -> None:
    """Keep dashboards open until the input is closed."""
    events = [0] * count
    first = asyncio.Semaphore(0)

    async def follow(place: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        head = f"GET /api/live HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
        writer.write(head.encode())
        status = await reader.readline()
        if b" 200 " not in status:
            raise SystemExit(f"a stream was answered with {status!r}")
        while line := await reader.readline():
            if line.startswith(b"event: figures"):
                events[place] += 1
                if events[place] == 1:
                    first.release()
        raise SystemExit("a stream has ended")

    following = [asyncio.create_task(follow(place)) for place in range(count)]
    opened = asyncio.create_task(_all(first, count))
    await asyncio.wait({opened, *following}, return_when=asyncio.FIRST_COMPLETED)
    for task in following:
        if task.done():
            task.result()
    print("open", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    print(min(events), flush=True)
    for task in following:
        task.cancel()


async def _all(first: asyncio.Semaphore, count: int) -> None:
    for _ in range(count):
        await first.acquire()


if __name__ == "__main__":
    what, port, *rest = sys.argv[1:]
    if what == "load":
        print(*asyncio.run(load(int(port), int(rest[0]), float(rest[1]))))
    else:
        asyncio.run(streams(int(port), rest[0], int(rest[1])))
