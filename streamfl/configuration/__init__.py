"""Settings, secrets and URLs as an operator writes them."""
