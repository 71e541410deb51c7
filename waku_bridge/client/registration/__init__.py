"""The side that registers: registrations, advertisements, and what it keeps."""
