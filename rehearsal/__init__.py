"""``scale=paper`` itself, from a hub on this machine: only the weights and the rows are made up. No part of the package.

python -m rehearsal --help        # run from the repository root; `make rehearse`
"""
