"""Query topics as a bridge hears of them, for tests that are not asynchronous."""

import asyncio

from waku_bridge.query_topics import QueryTopics
from waku_bridge.reading.intake import Session


class Listening:
    """Topics of a session, in a loop of its own that runs only while it is asked something."""

    def __init__(self, on_new=None):
        self.topics = QueryTopics(on_new)
        self.session = Session(self.topics)
        self.runner = asyncio.Runner()

    def __contains__(self, content_topic):
        return content_topic in self.topics

    def __len__(self):
        return len(self.topics)

    def refresh(self):
        """Any statement brings what was committed before it."""
        self.runner.run(self.session.execute("SELECT 1"))

    def close(self):
        self.runner.run(self.session.close())
        self.runner.close()
