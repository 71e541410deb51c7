"""Lists of the admin: columns, filters, search, and pages that do not count their rows."""
