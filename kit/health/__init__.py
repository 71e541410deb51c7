"""Health: indicators and the facts that they judge, and the results of config checks. See docs/console.md."""
