"""The pages of the nightly reports: figures of the result tables, never of the tables of the server itself."""
