"""A Flask site for the tests of real servers.

RATEBOUND_TEST_POLICY is its policy file, and RATEBOUND_TEST_STORAGE says where it counts.
"""

import os

import flask

from ratebound.web.flask import RateLimits

application = flask.Flask(__name__)
RateLimits(application, os.environ["RATEBOUND_TEST_POLICY"], storage=os.environ["RATEBOUND_TEST_STORAGE"])


@application.get("/")
def pid() -> str:
    return str(os.getpid())
