"""``python -m streamfl``: the command ``streamfl``."""

from streamfl.entry import main

if __name__ == "__main__":
    main()
