"""Wrong messages for every system: how they are made, who takes them, and what has to hold."""
