"""Known mistakes in policies that load: named warnings, each with what to write instead."""
