"""Life of a process: start-up checks, readiness, leader lock, tasks, and stop. See docs/installation/README.md."""
