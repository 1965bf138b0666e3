"""`python -m ruststream`: the same as the `ruststream` command."""

import sys

from ruststream.cli import main

sys.exit(main())
