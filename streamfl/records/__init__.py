"""Records of a user's topics: samples, labels, entities, and the join of samples with labels that come
later."""
