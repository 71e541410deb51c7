"""Promise of design and documentation: the server keeps hashes instead of identities, and no secret in plain."""

from tests.flows.traces import Traces, found
from tests.rig.network import Network, android, new_sender
from tests.rig.server import Fleet


def test_no_token_key_or_message_is_in_a_log_or_in_plain_in_the_database(fleet: Fleet, network: Network) -> None:
    traces = Traces(network)
    meanwhile = _tables(fleet)
    traces.leave()
    afterwards = {**_tables(fleet), **{f"log of {name}": text for name, text in fleet.logs().items()}}
    in_registrations = meanwhile["table registrations_registration"]
    assert found({"key hash": traces.phones[0].identity.key_hash}, {"stored on purpose": in_registrations})
    hidden = traces.secrets()
    assert found(hidden, afterwards) == []
    del hidden["message"]  # the message is kept as long as a push may be repeated
    assert found(hidden, meanwhile) == []


def test_the_contents_of_a_push_are_forgotten_once_it_is_delivered(network: Network) -> None:
    address, sender = android(), new_sender()
    network.notify(sender, network.query(sender, network.phone(address)), sender.one_to_one(b"for the phone"))
    assert len(network.pushes_to(address)) == 1
    network.wait_until_answered()
    kept = """
        SELECT count(*) FROM notifications_notification WHERE finished_at IS NOT NULL
           AND (chat_id IS NOT NULL OR message IS NOT NULL)
        UNION ALL SELECT count(*) FROM notifications_notificationrequest
           WHERE state = 'answered' AND reply_address IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_inboundenvelope
           WHERE state NOT IN ('received', 'postponed') AND payload IS NOT NULL
        UNION ALL SELECT count(*) FROM waku_bridge_outboundreply
           WHERE state NOT IN ('pending', 'published') AND payload IS NOT NULL  -- published: until a store has it
    """
    assert network.rows(kept) == [(0,)] * 4


def _tables(fleet: Fleet) -> dict[str, str]:
    """Return every table as text, with bytes in hex."""
    names = fleet.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    return {
        f"table {name}": "\n".join(text for (text,) in fleet.rows(f'SELECT row::text FROM "{name}" AS row'))
        for (name,) in names
    }
