"""What replicas share: one protocol (`protocol`), in memory (`local`) and in Redis (`redis_store`)."""
