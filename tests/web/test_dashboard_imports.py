"""A dashboard needs nothing but its framework: no other one, and none of the service's packages."""

import os
import subprocess
import sys

import pytest

MISSING = ["grpc", "h2", "msgspec", "prometheus_client", "redis", "rich", "uvicorn", "uvloop", "yaml"]
FRAMEWORKS = ["django", "fastapi", "flask", "rest_framework", "starlette", "werkzeug"]
PROGRAMS = {
    "flask werkzeug": """
import flask
from ratebound.web.flask import RateLimits
app = flask.Flask("site")
limits = RateLimits(app, "5/minute")
app.register_blueprint(limits.dashboard(auth=lambda: "read"), url_prefix="/limits")
assert app.test_client().get("/limits/").status_code == 200
assert app.test_client().get("/limits/api/figures").status_code == 200
""",
    "django": """
import django
from django.conf import settings
from django.test import Client
from django.urls import path
settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["*"], RATEBOUND="5/minute",
                   MIDDLEWARE=["ratebound.web.django.RateLimitMiddleware"])
django.setup()
from ratebound.web.django import dashboard
urlpatterns = [path("limits/", dashboard(auth=lambda request: "read"))]
assert Client().get("/limits/").status_code == 200
assert Client().get("/limits/api/figures").status_code == 200
""",
    "starlette": """
from starlette.applications import Starlette
from ratebound.web.fastapi import RateLimits
app = Starlette()
limits = RateLimits("5/minute", app=app)
app.mount("/limits", limits.dashboard(auth=lambda request: "read"))
""",
    "": """
from ratebound.web import asgi, wsgi
asgi.RateLimitMiddleware(print, "5/minute").with_dashboard("/limits", auth=lambda scope: "read")
wsgi.RateLimitMiddleware(print, "5/minute").with_dashboard("/limits", auth=lambda environ: "read")
""",
}


@pytest.mark.parametrize("framework", PROGRAMS, ids=lambda name: name or "none")
def test_a_dashboard_needs_only_its_framework(framework: str) -> None:
    missing = [*MISSING, *(one for one in FRAMEWORKS if one not in framework.split())]
    program = f"import sys\nsys.modules.update(dict.fromkeys({missing!r}))\n{PROGRAMS[framework]}"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**os.environ, "PYTHONWARNINGS": "error"}
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("module", ["asgi", "wsgi", "fastapi", "flask"])
def test_without_a_dashboard_nothing_of_it_is_imported(module: str) -> None:
    program = f"import sys, ratebound.web.{module}; print([name for name in sys.modules if 'ratebound.admin' in name])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "site" not in done.stdout
    assert "operations" not in done.stdout
