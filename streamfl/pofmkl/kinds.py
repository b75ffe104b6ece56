"""The names of POF-MKL's two roles."""

from __future__ import annotations

__all__ = ["CLIENT", "SERVER"]

CLIENT, SERVER = "pofmkl-client", "pofmkl-server"
