"""Monitoring of workers: dashboards for Grafana, and rules and runbooks for Prometheus' alerts."""
