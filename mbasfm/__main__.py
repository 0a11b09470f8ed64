"""``python -m mbasfm`` is the command ``mba``."""

import sys

from mbasfm.cli import main

if __name__ == "__main__":
    sys.exit(main())
