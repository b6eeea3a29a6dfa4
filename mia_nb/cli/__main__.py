"""python -m mia_nb.cli"""

import sys

from mia_nb.cli import main

sys.exit(main())
