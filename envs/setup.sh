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
header='import os, sys, sysconfig; sys.exit(not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")))'
"$python" -c "$header" 2>/dev/null ||
    fail "$python lacks Python.h, and pycddlib must be compiled (on Debian and Ubuntu: apt install python3-dev)"
command -v c++ >/dev/null 2>&1 || command -v g++ >/dev/null 2>&1 ||
    fail "no C++ compiler found, and llama.cpp must be compiled (on Debian and Ubuntu: apt install build-essential; on macOS: xcode-select --install)"
free_mb=$(df -Pk . | awk 'NR == 2 { print int($4 / 1024) }')
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

# Flags for the instructions that both this processor and the compiler know. Without them, verifying several tokens costs almost
# as much as decoding them, and speculation hardly pays. GGML_NATIVE would add AMX, which gcc 12 compiles into a crash.
has() { grep -qw "$1" "${CPUINFO:-/proc/cpuinfo}" 2>/dev/null && "$2" "$3" -fsyntax-only -x c++ /dev/null 2>/dev/null; }
avx512() {
    for pair in avx512bw:AVX512 avx512vbmi:AVX512_VBMI avx512_vnni:AVX512_VNNI avx512_bf16:AVX512_BF16 avx_vnni:AVX_VNNI; do
        name=${pair%%:*}
        if has "$name" c++ "-m$(printf '%s' "$name" | tr -d _)"; then printf ' -DGGML_%s=ON' "${pair#*:}"; fi
    done
}
amx() {
    for version in 21 20 19 18 17 16; do
        has amx_tile "clang++-$version" -mamx-int8 || continue
        printf ' -DCMAKE_C_COMPILER=clang-%s -DCMAKE_CXX_COMPILER=clang++-%s' "$version" "$version"
        printf ' -DGGML_AMX_TILE=ON -DGGML_AMX_INT8=ON -DGGML_AMX_BF16=ON'
        break
    done
}

# ARM has no such names: there the compiler knows the processor. Without it, gcc would use no instruction for dot products of bytes.
arm() { case $(uname -m) in arm64 | aarch64) printf ' -DGGML_NATIVE=ON' ;; esac; }
# Accelerate has threads of its own, which the clock of one thread does not see.
apple() { [ "$(uname -s)" != Darwin ] || printf ' -DGGML_BLAS=OFF'; }

llama=$(grep '^llama-cpp-python==' envs/constraints.txt)
wheel=llama_cpp_python-${llama#*==}-*.whl
make_cache() {  # the folder of the wheel
    mkdir -p "$wheels" 2>/dev/null && [ -w "$wheels" ] ||
        fail "cannot write to $wheels (make it writable, or name another cache: XDG_CACHE_HOME=FOLDER make ...)"
}
compile() {  # the wheel of llama.cpp for these flags, unless it is in the cache
    log=.venv/llama.log
    : >"$log"
    ls "$wheels"/$wheel >/dev/null 2>&1 && return
    make_cache
    # nproc would obey OMP_NUM_THREADS. Without --no-cache-dir, pip reuses a wheel that it built earlier, even with other flags.
    CMAKE_ARGS=$flags CMAKE_BUILD_PARALLEL_LEVEL=$(getconf _NPROCESSORS_ONLN) pip wheel --no-cache-dir --no-deps -w "$wheels" "$llama"
}
choose() {  # sets the flags of llama.cpp, $1 in addition to the usual ones, and the folder of their wheel
    flags="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF$apple$1 $more"
    wheels=${XDG_CACHE_HOME:-$HOME/.cache}/draftlab/wheels-$(printf '%s' "$flags" | cksum | cut -d' ' -f1)
}
works() {  # install the wheel, even over the same version built with other flags, and check it
    pip install --force-reinstall --no-deps "$wheels"/$wheel
    pip install -c envs/constraints.txt -e ".[dev]"
    .venv/bin/python -m draftlab.latency.self_check >>"$log" 2>&1
}
# Another checkout may use it, and venv makes none behind a link.
[ ! -L .venv ] || fail ".venv is a link, which cannot be made anew (remove it, or if what it leads to is up to date: touch .venv/ready)"

step "making .venv with $("$python" --version)"
rm -f .venv/ready  # what is left of a setup that fails is not ready
more=${LLAMA_CMAKE_ARGS-$(cat .venv/llama-flags 2>/dev/null || :)}  # default: the flags of the last build
# Without --clear, venv keeps the links of an existing .venv, to another Python or to one that is gone.
clear=
[ "$(.venv/bin/python --version 2>/dev/null)" = "$("$python" --version)" ] || clear=--clear
"$python" -m venv $clear .venv >>"$log" 2>&1 || fail "cannot make .venv (details: $log)"
# The flags to try, the best first. Those whose wheel failed its self-check before are not tried again.
avx512=$(avx512)
amx=$(amx)
arm=$(arm)
apple=$(apple)
set -- ""
[ -z "$arm" ] || set -- "$arm" "$@"
[ -z "$avx512" ] || set -- "$avx512" "$@"
[ -z "$amx" ] || set -- "$avx512$amx" "$@"
choose "$1"
while [ -e "$wheels/fails" ]; do shift; choose "$1"; done
if ! ls "$wheels"/$wheel >/dev/null 2>&1; then
    make_cache
    [ -n "$amx" ] || ! has amx_tile true "" ||
        step "with clang 16 or newer, llama.cpp could use this processor's AMX, which makes 4- and 8-bit weights faster (on Debian: apt install clang-16 libomp-16-dev, then run envs/setup.sh again)"
    step "compiling llama.cpp in the background (3 to 7 minutes on 2 cores, only once: the wheel is kept in $wheels)"
fi
compile 2>.venv/llama.error &
compiling=$!
trap 'kill $compiling 2>/dev/null || :' EXIT
step "installing pinned packages (a minute or two)"
pip install --no-deps --require-hashes -r envs/hashes.txt  # first: pip compares no digest of what torch has already installed
pip install -c envs/constraints.txt torch ${PIP_ARGS:-}
wait $compiling && compiled=yes || compiled=
trap - EXIT
until [ -n "$compiled" ] && works; do
    [ -n "$compiled" ] || [ $# -gt 1 ] || { cat .venv/llama.error >&2; exit 1; }
    [ $# -gt 1 ] || fail "llama.cpp fails its self-check (details: $log)"
    step "llama.cpp built for all instructions of this processor fails: compiling it for fewer of them"
    # A compilation may fail for once (network, memory, disk), so only a wheel that fails its self-check is never tried again.
    if [ -n "$compiled" ]; then make_cache && touch "$wheels/fails"; fi
    shift
    choose "$1"
    (compile) 2>.venv/llama.error && compiled=yes || compiled=
done
printf '%s\n' "$more" >.venv/llama-flags
touch .venv/ready
step "installed; to use it in your shell: . .venv/bin/activate"
