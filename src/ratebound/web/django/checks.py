"""`manage.py check`: what is wrong with the settings and with the limits of views, before a request finds it."""

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from ratebound.web.django.keeper import keeper


@register(Tags.urls)  # type: ignore[untyped-decorator]
def check_limits(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Return an error for each limit that cannot be used, and for settings that cannot be read."""
    try:
        keep = keeper()
    except (TypeError, ValueError, ImportError) as error:
        return [Error(f"RATEBOUND in the settings: {error}", id="ratebound.E001")]
    return [Error(mistake, id="ratebound.E002") for mistake in keep.mistakes()]
