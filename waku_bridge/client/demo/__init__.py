"""A small world for demonstrations: who lives in it (`cast`), and what they do all day (`life`)."""
