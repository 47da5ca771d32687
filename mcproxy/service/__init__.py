"""mcproxy as a service of its machine: signals, systemd, and reloading the configuration."""
