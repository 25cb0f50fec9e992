#!/bin/sh
# List known vulnerabilities of the pinned packages, if pip-audit is installed and its advisory database answers.
set -eu
cd "$(dirname "$0")/.."
skip() { printf 'advisories: skipped, %s\n' "$1"; exit 0; }
command -v pip-audit >/dev/null 2>&1 || skip "pip-audit is not installed (pip install pip-audit)"
# --strict: a package that the database does not know counts as a failure.
said=$(pip-audit --requirement envs/constraints.txt --no-deps --disable-pip --strict --progress-spinner off 2>&1) && skipped= || skipped=yes
case $said in
    *"Found "*vulnerabilit*) printf '%s\n' "$said" >&2; exit 1 ;;
esac
[ -z "$skipped" ] || skip "no advisory database answers: $(printf '%s\n' "$said" | tail -n 1)"
echo "advisories: no known vulnerability in envs/constraints.txt"
