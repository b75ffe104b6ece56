"""Tools that run and show a quasi-Newton federation from outside."""
