"""Commands that speak to a gateway that runs, over its control socket."""
