"""Lists of the admin: columns, filters, search, and paging without a count of all rows."""
