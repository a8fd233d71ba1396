"""Flask: limits for all views, for one, for a blueprint; logins that count only when they fail; the application's own
page for rejections. `flask --app examples/flask_app run` serves it; run as it is, it asks itself."""

from typing import Any

from flask import Blueprint, Flask, g, request

from ratebound.web.flask import RateLimits

app = Flask(__name__)
limiter = RateLimits(app, "100/minute", user=lambda: request.headers.get("x-verified-user"))
reports = Blueprint("reports", __name__, url_prefix="/reports")
limiter.limit("2/minute", key="user")(reports)


@app.get("/users/<int:number>")
@limiter.limit("3/minute")
def user(number: int) -> dict[str, int]:
    return {"number": number, "left": g.ratebound.decision.remaining}


@app.post("/login")
@limiter.limit("5/15 minutes", charge="failure")
def login() -> tuple[str, int]:
    return ("welcome", 200) if request.form.get("password") == "correct horse" else ("wrong", 401)


@reports.get("/<int:year>")
def report(year: int) -> str:
    return f"all that happened in {year}"


@app.get("/health")
@limiter.exempt
def health() -> str:
    return "well"


@app.errorhandler(429)
def too_many(error: Any) -> tuple[str, int]:
    return f"Please wait: {error.description}", 429


app.register_blueprint(reports)

if __name__ == "__main__":
    client = app.test_client()
    for number in range(1, 5):
        response = client.get(f"/users/{number}")
        print(f"GET /users/{number}: {response.status_code}  {response.headers['RateLimit']}")
    for password in ["correct horse"] * 2 + ["guess"] * 6:
        response = client.post("/login", data={"password": password})
        print(f"POST /login {password!r}: {response.status_code}  {response.text}")
    for who in ("ann", "bob", "ann", "ann"):
        response = client.get("/reports/2024", headers={"x-verified-user": who})
        print(f"GET /reports/2024 by {who}: {response.status_code}  {response.text}")
