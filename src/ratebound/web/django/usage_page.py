"""A view that tells callers their own usage: `path("rate_limit", usage_page)`."""

from functools import partial
from typing import Any

from django.http import HttpResponse

from ratebound.flow import run
from ratebound.web.django.configuration import configured_limits
from ratebound.web.route_limit import exempt
from ratebound.web.usage_page import CONTENT_TYPE, HEADERS, read_page


@exempt
def usage_page(request: Any) -> Any:
    """Tell the caller its own usage of all limits, as JSON. It costs nothing, except for early rules.

    Args:
        request: The HttpRequest.

    Examples:
        >>> from django.urls import path
        >>> from ratebound.web.django import usage_page
        >>> urlpatterns = [path("rate_limit", usage_page)]
    """
    limits = configured_limits()
    page = run(read_page(limits.gate, partial(limits.usage, request, all_rules=True)))
    return HttpResponse(page.body, status=page.status, headers=HEADERS, content_type=CONTENT_TYPE)
