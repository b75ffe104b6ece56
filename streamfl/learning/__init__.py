"""What learning systems share: optimisers, and models from River to compare with."""
