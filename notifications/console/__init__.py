"""Pages of the console that are more than lists of facts. `admin.py` imports them. See docs/console.md."""
