"""A chaos run: upstreams, connections and credentials fail at random while marked calls are counted."""
