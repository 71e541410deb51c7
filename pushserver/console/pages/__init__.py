"""Pages that combine all apps: overview, search, users, timelines, incidents, alerts and accounts."""
