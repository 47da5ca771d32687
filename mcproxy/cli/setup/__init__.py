"""Commands that write files: a host's own, for `connect`, and the configuration, for `import`, `add` and `remove`."""
