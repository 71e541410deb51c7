"""Building blocks of the API endpoints of all apps: views, paging, errors, and rate limits. See docs/api.md."""
