"""A client that keeps within the limit of a server: it learns the limit from headers, and waits instead of failing."""

import threading
from wsgiref.simple_server import WSGIRequestHandler, make_server

import requests

from ratebound.client.call_events import Attempted, Paced
from ratebound.client.requests import PoliteAdapter
from ratebound.web.wsgi import RateLimitMiddleware


class QuietHandler(WSGIRequestHandler):
    def log_message(self, *args):
        pass


def application(environ, start_response):
    start_response("200 OK", [("Content-Length", "2")])
    return [b"ok"]


server = make_server("127.0.0.1", 0, RateLimitMiddleware(application, "20/second burst 20"), handler_class=QuietHandler)
threading.Thread(target=server.serve_forever, daemon=True).start()
events = []
with requests.Session() as session:
    session.mount("http://", PoliteAdapter(listeners=[events.append]))
    answers = [session.get(f"http://127.0.0.1:{server.server_port}", timeout=10).status_code for _ in range(40)]
server.shutdown()
server.server_close()

refused = sum(event.status == 429 for event in events if isinstance(event, Attempted))
waited = sum(event.seconds for event in events if isinstance(event, Paced))
passed = answers.count(200)
print(f"{passed} of {len(answers)} calls succeeded, {refused} attempts were refused, {waited:.1f} s of waiting")
