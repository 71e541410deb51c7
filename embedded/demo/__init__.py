"""A small world for demonstrations: the people in it (`cast`), and what they do all day (`life`)."""
