#!/bin/sh
# Make .venv with the pinned packages. Every failure is one line that says what to do.
set -eu
cd "$(dirname "$0")/.."

fail() { printf 'draftlab: error: %s\n' "$1" >&2; exit 1; }
step() { printf 'draftlab: %s\n' "$1"; }

python=${PYTHON:-}
if [ -z "$python" ]; then
    for name in python3 python3.13 python3.12 python3.11; do
        if command -v "$name" >/dev/null 2>&1 && "$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
            python=$name
            break
        fi
    done
fi
[ -n "$python" ] || fail "no Python 3.11 or newer found (install python3, or name one: make PYTHON=/path/to/python3.12 ...)"
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null ||
    fail "$python is not Python 3.11 or newer (name another: make PYTHON=/path/to/python3.12 ...)"
"$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python cannot make virtual environments (on Debian and Ubuntu: apt install python3-venv)"
command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 ||
    fail "no C++ compiler found, and llama.cpp must be compiled (on Debian and Ubuntu: apt install build-essential)"
free_mb=$(df -Pm . | awk 'NR == 2 { print $4 }')
[ "$free_mb" -ge 6000 ] || fail "only $free_mb MB free here, 6000 MB are needed (free some space, run again)"

log=.venv.log
: >"$log"
pip() {
    .venv/bin/python -m pip --disable-pip-version-check "$@" >>"$log" 2>&1 && return
    if grep -qiE 'name resolution|connection (refused|timed|reset|broken)|network is unreachable|max retries' "$log"; then
        fail "the package index cannot be reached (check the network or pip's index settings, run again; details: $log)"
    elif grep -qi 'no space left' "$log"; then
        fail "the disk is full (free some space, run again; details: $log)"
    fi
    fail "pip $1 failed (details: $log)"
}

step "making .venv with $("$python" --version)"
"$python" -m venv .venv >>"$log" 2>&1 || fail "cannot make .venv (details: $log)"
step "installing pinned packages (a minute or two)"
pip install -c envs/constraints.txt torch ${PIP_ARGS:-}
# The default build crashes on CPUs with AMX under gcc 12; this one has AVX2, and AVX-512 where the CPU has it: without it
# verifying several tokens costs almost as much as decoding them, and speculation hardly pays.
flags="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF"
if grep -q avx512bw /proc/cpuinfo 2>/dev/null; then flags="$flags -DGGML_AVX512=ON"; fi
more=${LLAMA_CMAKE_ARGS-$(cat .venv/llama-flags 2>/dev/null || :)}  # none named: as it was
flags="$flags $more"
key=$(printf '%s' "$flags" | cksum | cut -d' ' -f1)
llama=$(grep '^llama-cpp-python==' envs/constraints.txt)
wheel=llama_cpp_python-${llama#*==}-*.whl
wheels=${XDG_CACHE_HOME:-$HOME/.cache}/draftlab/wheels-$key
if ! ls "$wheels"/$wheel >/dev/null 2>&1; then
    step "compiling llama.cpp (3 minutes on 2 cores, once: the wheel is kept in $wheels)"
    mkdir -p "$wheels"
    # Not nproc, which goes by OMP_NUM_THREADS. Without --no-cache-dir pip hands out a wheel that it built earlier, whatever the flags were.
    CMAKE_ARGS=$flags CMAKE_BUILD_PARALLEL_LEVEL=$(getconf _NPROCESSORS_ONLN) pip wheel --no-cache-dir --no-deps -w "$wheels" "$llama"
fi
# Of the same version as the one that is there, perhaps, but built otherwise.
pip install --force-reinstall --no-deps "$wheels"/$wheel
pip install -c envs/constraints.txt -e ".[dev]"
printf '%s\n' "$more" >.venv/llama-flags
touch .venv/ready
step "installed; in a shell of your own: . .venv/bin/activate"
