"""A site for servers that are programs of their own."""

from ratebound.admin.asgi import AdminAsgi
from ratebound.policy import AsyncGate
from tests.admin.sites import a_policy, a_site

app = AdminAsgi(a_site(AsyncGate(a_policy())))
