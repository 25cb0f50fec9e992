# Written by envs/render.py from constraints.txt: edit that, then run it again.
# Snakemake runs this in a conda environment that it has just made: the pins are there, the package is not. It comes from the checkout
# that the workflow runs in, or from the one that DRAFTLAB_SOURCE names.
pip install --no-deps -e "${DRAFTLAB_SOURCE:-.}"
