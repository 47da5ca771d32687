"""Small servers with scripted manners, for the tests of links: a child process, and HTTP on loopback."""
