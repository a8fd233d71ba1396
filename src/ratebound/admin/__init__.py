"""Administration: the calls of operators, the live dashboard and its sign-in, without a web framework."""
