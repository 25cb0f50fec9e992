#!/bin/sh
# build.sh PYTHON: compile llama.cpp's server for the llama-cpp-python of this Python, once, into the user's cache; prints where it is.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
python=$(command -v "$1")
version=$("$python" -c 'import importlib.metadata as m; print(m.version("llama-cpp-python"))')
libraries=$("$python" -c 'import llama_cpp, pathlib; print(pathlib.Path(llama_cpp.__file__).parents[1])')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/draftlab/server-$version
if [ ! -x "$cache/llama-server" ]; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    "$python" -m pip download --quiet --no-deps --no-binary llama-cpp-python --dest "$work" "llama-cpp-python==$version" >&2
    tar xzf "$work"/llama_cpp_python-*.tar.gz -C "$work" --strip-components=3 --exclude='*/llama.cpp/models' --wildcards '*/vendor/llama.cpp/*'
    cp "$here/CMakeLists.txt" "$work"
    cmake -S "$work" -B "$work/build" -DCMAKE_PREFIX_PATH="$libraries" -DLLAMA_OPENSSL=OFF >&2
    cmake --build "$work/build" --target llama-server --parallel "${JOBS:-$(getconf _NPROCESSORS_ONLN)}" >&2
    mkdir -p "$cache"
    cp "$work/build/bin/llama-server" "$cache/part"
    mv "$cache/part" "$cache/llama-server"
fi
echo "$cache/llama-server"
