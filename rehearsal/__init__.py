"""``scale=paper`` itself, from a hub on this machine: nothing is made up but the weights and the rows. No part of the package.

python -m rehearsal --help        # run from the repository root; `make rehearse`
"""
