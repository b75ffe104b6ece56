"""The members of a POF-MKL federation: the clients' worker, and the server."""

from __future__ import annotations

from streamfl.pofmkl.config import PofmklSettings
from streamfl.pofmkl.kinds import CLIENT, SERVER
from streamfl.simulation.clients import ClientMembers

__all__ = ["MEMBERS"]

MEMBERS = ClientMembers(PofmklSettings, {"client": CLIENT, "server": SERVER})
