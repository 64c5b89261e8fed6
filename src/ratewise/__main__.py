"""``python -m ratewise`` is the command ``ratewise``."""

from ratewise.cli import main

if __name__ == "__main__":
    main()
