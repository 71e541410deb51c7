"""How fast console and API are with much in the database."""
