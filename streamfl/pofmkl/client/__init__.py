"""The client: its registry, pending samples and labels, uploads, and its copy of the model."""
