"""The commands on policy files: check, explain and import."""
