"""The rules by which errors of gorush are read: their file, their table, and the preview of a change."""
