"""A dashboard as a picture, drawn by Grafana's own components from a real Prometheus."""
