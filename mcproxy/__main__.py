"""`python -m mcproxy`."""

from mcproxy.cli import main

if __name__ == "__main__":
    main()
