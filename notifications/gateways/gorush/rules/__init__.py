"""The rules that read gorush's errors: their file, their table, and the preview of a change."""
