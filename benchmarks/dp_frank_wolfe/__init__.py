"""DP Frank-Wolfe: what privacy costs, and what is sent."""
