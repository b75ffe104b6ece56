"""What streamfl relies on in a bus. A connector is good if these pass on it.

Subclass :class:`BusLaws` in a test module and give it a fixture ``bus``::

    class TestMyBus(BusLaws):
        @pytest.fixture
        def bus(self): ...

Every law uses topics and groups of its own, so one cluster serves them all. A bus whose members are only taken for dead after a
while has to be configured so that this is less than 90 seconds.
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

    Whoever writes a connector step by step can subclass the suites one by one, in this order:

    :class:`streamfl.testing.bus_laws.topics.TopicLaws`: topics and the records in them; no member reads.
    :class:`streamfl.testing.bus_laws.polls.PollLaws`: what a poll brings; one member at a time.
    :class:`streamfl.testing.bus_laws.state.StateLaws`: tables and restored state.
    :class:`streamfl.testing.bus_laws.groups.GroupLaws`: several members share partitions.
    :class:`streamfl.testing.bus_laws.commits.CommitLaws`: steps are whole, and refused from whoever lost its partitions.
    """
