import pytest

from xmpp_bridge.tests.talking import Service, make_app


@pytest.fixture
def service() -> Service:
    """Return the handler of a component, with one app."""
    make_app()
    return Service()
