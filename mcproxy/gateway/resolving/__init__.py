"""From the names that callers use to upstreams and their own names, and who may use which; asks no upstream itself."""
