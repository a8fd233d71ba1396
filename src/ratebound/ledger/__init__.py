"""The usage ledger: what clients have used, in a database, for bills and audits. See docs/ledger.md."""
