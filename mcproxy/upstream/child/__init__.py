"""An upstream as a child process: started, spoken to over its stdio, and ended with all processes that it started."""
