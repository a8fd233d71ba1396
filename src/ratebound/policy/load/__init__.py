"""Policy files: from text to values with line numbers, from values to a Policy. All errors are reported at once."""
