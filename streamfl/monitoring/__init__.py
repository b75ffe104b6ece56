"""What workers are watched with: dashboards for Grafana, and rules and runbooks for Prometheus' alerts."""
