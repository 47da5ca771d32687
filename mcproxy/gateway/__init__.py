"""Call to Outcome: the pipeline, the router, the catalogue that is kept, subscriptions. Knows no transport."""
