"""Names that PostgreSQL gives to the indexes of single partitions, as they stand in query plans."""

from kit.db.statements import fetch


def index_of(partition: str, index: str) -> str:
    """Return the name that an index of a partitioned table has in one of its partitions."""
    sql = """
        SELECT relname FROM pg_inherits JOIN pg_index ON indexrelid = inhrelid JOIN pg_class ON pg_class.oid = inhrelid
        WHERE inhparent = %s::regclass AND indrelid = %s::regclass
    """
    [(name,)] = fetch(sql, [index, partition])
    return str(name)
