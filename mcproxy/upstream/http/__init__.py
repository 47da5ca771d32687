"""HTTP as links of both eras use it: requests with the credentials of a link, and what is read of responses."""
