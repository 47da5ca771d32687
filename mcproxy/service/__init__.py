"""The gateway as a service of its machine: signals, systemd notifications, and reloading the configuration."""
