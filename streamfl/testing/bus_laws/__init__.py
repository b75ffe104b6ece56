"""The properties of a bus that streamfl relies on. A connector is correct if these tests pass.

Subclass :class:`BusLaws` in a test module and give it a fixture ``bus``::

    class TestMyBus(BusLaws):
        @pytest.fixture
        def bus(self): ...

Every law uses topics and groups of its own, so one cluster serves them all. If a bus removes silent members
only after a timeout, configure a timeout below 90 seconds.
"""

from __future__ import annotations

from streamfl.testing.bus_laws.commits import CommitLaws
from streamfl.testing.bus_laws.groups import GroupLaws
from streamfl.testing.bus_laws.polls import PollLaws
from streamfl.testing.bus_laws.state import StateLaws
from streamfl.testing.bus_laws.topics import TopicLaws

__all__ = ["BusLaws"]


class BusLaws(CommitLaws, PollLaws, StateLaws, GroupLaws, TopicLaws):
    """All laws, for the bus that the fixture ``bus`` gives.

    To write a connector step by step, subclass the suites one by one in this order:

    :class:`streamfl.testing.bus_laws.topics.TopicLaws`: topics and the records in them; no member reads.
    :class:`streamfl.testing.bus_laws.polls.PollLaws`: what a poll returns; one member at a time.
    :class:`streamfl.testing.bus_laws.state.StateLaws`: tables and restored state.
    :class:`streamfl.testing.bus_laws.groups.GroupLaws`: several members share partitions.
    :class:`streamfl.testing.bus_laws.commits.CommitLaws`: steps are atomic, and refused from a member that
    lost its partitions."""
