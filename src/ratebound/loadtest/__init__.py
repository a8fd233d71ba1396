"""Load tests: requests on a schedule, and a check of what the limiter answered."""
