"""What runs, shows and compares DP Frank-Wolfe; no worker imports it."""
