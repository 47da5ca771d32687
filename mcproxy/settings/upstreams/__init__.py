"""Settings of one upstream: how it is reached, the credentials of its callers, and OAuth."""
