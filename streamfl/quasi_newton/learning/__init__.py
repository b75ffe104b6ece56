"""The mathematics: Taylor loss, curvature pairs, steps, and a party's arithmetic on its columns."""
