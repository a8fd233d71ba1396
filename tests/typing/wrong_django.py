"""Mistakes that type checkers find: each on a line that ends with the mark."""

from ratebound.web.django import Settings, dashboard, limit
from ratebound.web.drf import throttle


@limit("5/minute", rate="5/m")  # error
@limit("5/minute", key="user")
def view(request: object, number: int) -> str:
    return str(number)


@limit("5/minute")
async def waiting(request: object) -> str:
    return ""


dashboard()  # error
dashboard(auth=lambda request: "admin")  # error
view(object(), "1")  # error
number: int = view(object(), 1)  # error
waiting(object()).upper()  # error
limit("5/minute", failure="opne")  # error
limit("5/minute", group="a")  # error
limit(key="user")  # error
throttle("5/minute", mode="shaddow")  # error
RATEBOUND: Settings = {"policy": "5/minute", "storge": "memory://"}  # error
