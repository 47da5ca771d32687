"""What the documents show is made from the code, or checked against it."""
