"""Common mistakes in valid policies: named warnings, each with what to write instead."""
