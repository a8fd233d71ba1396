"""Tokens of a language model: reserve the most that an answer may use, then commit what it used, also in a stream."""

import asyncio
from collections.abc import AsyncIterator

from ratebound import AsyncLimiter, Limiter, RateLimited

LIMITS = "10000/hour burst 10000 as tokens; 2 concurrent as answers"  # at most two answers at once for one customer
limiter = Limiter(LIMITS)
async_limiter = AsyncLimiter(LIMITS, storage=limiter.storage)


def complete(org: str, prompt: str, most: int) -> str:
    with limiter.reserve(org, most) as reservation:  # raises RateLimited before the model is called
        answer = prompt.upper()  # the model
        reservation.commit(len(answer))
    return answer


async def stream(org: str, prompt: str, most: int) -> AsyncIterator[str]:
    async with async_limiter.reserve(org, most) as reservation:
        used = 0
        try:
            for token in prompt.upper():  # the model
                used += 1
                yield token
                await asyncio.sleep(0)
        finally:  # also if the client has disconnected in the middle of the answer
            await reservation.commit(used)


def left(org: str) -> int:
    return limiter.peek(org).remaining


async def streamed() -> None:
    print("streamed:", "".join([token async for token in stream("org:7", "a long answer", most=5_000)]))
    print(left("org:7"), "tokens left")

    async def client() -> None:
        async for token in stream("org:7", "an answer that nobody waits for", most=5_000):
            print("received", token)
            if token == "N":
                asyncio.current_task().cancel()  # type: ignore[union-attr]

    await asyncio.gather(client(), return_exceptions=True)
    print("disconnected:", left("org:7"), "tokens left")


def main() -> None:
    print(complete("org:7", "a long question", most=9_000))
    print(left("org:7"), "tokens left")
    try:
        complete("org:7", "too much", most=9_990)
    except RateLimited as denied:
        print(f"denied by {denied.decision.limit.name}, retry in {denied.decision.retry_after:.1f} s")
    asyncio.run(streamed())


if __name__ == "__main__":
    main()
