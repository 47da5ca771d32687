"""The lists of all upstreams (tools, resources, templates, prompts): fetched, merged into views, paged, announced."""
