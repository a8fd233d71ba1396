"""The application for INSTALLED_APPS: with it `manage.py check` always checks limits."""

from django.apps import AppConfig


class RateboundConfig(AppConfig):  # type: ignore[misc]
    """The application `"ratebound.web.django"`. It has no models."""

    name = "ratebound.web.django"
    label = "ratebound"
