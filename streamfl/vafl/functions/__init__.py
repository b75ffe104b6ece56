"""The functions that learn: networks, heads with their losses, and models that an operator wrote."""
