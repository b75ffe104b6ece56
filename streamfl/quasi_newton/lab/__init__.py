"""What looks at a quasi-Newton federation from outside."""
