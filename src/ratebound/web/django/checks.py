"""`manage.py check` reports mistakes in the settings and in the limits of views."""

from typing import Any

from django.core.checks import CheckMessage, Error, Tags, register

from ratebound.web.django.configuration import configured_limits


@register(Tags.urls)  # type: ignore[untyped-decorator]
def check_limits(app_configs: Any, **_: Any) -> list[CheckMessage]:
    """Return an error for each limit that cannot be used, and for settings that cannot be read."""
    try:
        limits = configured_limits()
    except (TypeError, ValueError, ImportError) as error:
        return [Error(f"RATEBOUND in the settings: {error}", id="ratebound.E001")]
    return [Error(mistake, id="ratebound.E002") for mistake in limits.mistakes()]
