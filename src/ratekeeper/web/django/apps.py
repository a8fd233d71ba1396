"""For INSTALLED_APPS: `manage.py check` then looks at limits, whatever else has been imported by then."""

from django.apps import AppConfig


class RateKeeperConfig(AppConfig):  # type: ignore[misc]
    """The application `"ratekeeper.web.django"`. It has no models."""

    name = "ratekeeper.web.django"
    label = "ratekeeper"
