"""For INSTALLED_APPS: `manage.py check` then looks at limits, whatever else has been imported by then."""

from django.apps import AppConfig


class RateboundConfig(AppConfig):  # type: ignore[misc]
    """The application `"ratebound.web.django"`. It has no models."""

    name = "ratebound.web.django"
    label = "ratebound"
