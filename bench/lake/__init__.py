"""What the nightly reports and their export cost."""
