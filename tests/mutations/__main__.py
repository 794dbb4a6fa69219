"""`python -m tests.mutations [part of a name ...]`."""

import sys

from tests.mutations import main

sys.exit(main(sys.argv[1:]))
