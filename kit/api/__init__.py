"""What the endpoints of all apps have in common: views, pages, problems, and limits of calls. See docs/api.md."""
