"""Configuration: the environment, the data folder, the role of a process, and its log. See docs/settings.md."""
