"""Policy files: text to values with line numbers, values to a Policy, every mistake at once."""
