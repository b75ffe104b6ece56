"""Tools that run, show and test a quasi-Newton federation from outside."""
