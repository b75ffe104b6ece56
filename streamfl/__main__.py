"""``python -m streamfl``: the command ``streamfl``."""

from streamfl.cli import main

if __name__ == "__main__":
    main()
