"""An upstream as a child process: started, spoken to over its pipes, and ended with all that it started."""
