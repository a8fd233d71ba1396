"""asyncio, imported when it is first used: programs with threads only never need it, and it takes long to import.

`from ratebound.late_asyncio import asyncio` instead of `import asyncio`. Annotations that name it are quoted.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio as asyncio
else:

    class _LateAsyncio:
        """Stands for the module asyncio, and shares its names from the first use on.

        It keeps no copies: a function that a test has patched must not stay when the test is over.
        """

        def __getattr__(self, name: str) -> Any:
            import asyncio

            self.__dict__ = asyncio.__dict__
            return getattr(asyncio, name)

    asyncio = _LateAsyncio()


async def sleep(seconds: float) -> None:
    """Sleep as asyncio.sleep does. A default argument, where asyncio.sleep itself would import asyncio."""
    await asyncio.sleep(seconds)
