"""The query topics of a bridge, for tests that are not asynchronous."""

import asyncio

from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Session


class Listening:
    """The topics of a session, in an event loop of its own that runs only during calls."""

    def __init__(self, on_new=None):
        self.topics = QueryTopics(on_new)
        self.session = Session(self.topics)
        self.runner = asyncio.Runner()

    def __contains__(self, content_topic):
        return content_topic in self.topics

    def __len__(self):
        return len(self.topics)

    def refresh(self):
        """Take in the topics that were committed before, with any statement."""
        self.runner.run(self.session.execute("SELECT 1"))

    def close(self):
        self.runner.run(self.session.close())
        self.runner.close()
