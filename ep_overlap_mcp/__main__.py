"""`python -m ep_overlap_mcp` is the console script."""

import sys

from ep_overlap_mcp.cli import main

sys.exit(main())
