"""Random simulation of the protocol and of the designs that extend it.

    .venv/bin/python -m tests.protocol_model [SEEDS] [DESIGN…]       2,000 seeds of each by default

Each design must hold over all seeds. Each of its RULES has a mutant of that name that leaves it out and must be caught;
what is SPARE may be left out, and it must hold without.
"""

import sys

from tests.protocol_model.trial import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
