#!/bin/sh
# build_vulkan.sh [--install] PYTHON: compile llama.cpp for Vulkan, once, into the user's cache; prints the folder of the package llama_cpp.
# It takes 10 minutes on 2 cores, and needs Vulkan's headers and glslc; with --install, apt installs them and Mesa's software device.
# VULKAN_INCLUDE names a folder of headers where the system's are older than 1.3.272 (Debian 12's are).
set -eu
if [ "$1" = --install ]; then
    shift
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends mesa-vulkan-drivers libvulkan-dev glslc spirv-headers >/dev/null
fi
fail() { printf 'draftlab: error: %s\n' "$1" >&2; exit 1; }
new_enough() { [ "$(sed -n 's/^#define VK_HEADER_VERSION //p' "$1/vulkan/vulkan_core.h" 2>/dev/null || echo 0)" -ge 272 ] 2>/dev/null; }

python=$(command -v "$1") || fail "no such Python: $1"
version=$("$python" -c 'import importlib.metadata as m; print(m.version("llama-cpp-python"))')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/draftlab/vulkan-$version
if [ ! -d "$cache/llama_cpp" ]; then
    command -v glslc >/dev/null || fail "glslc is missing (on Debian and Ubuntu: apt install glslc, or call this with --install)"
    include=${VULKAN_INCLUDE:-/usr/include}
    mkdir -p "$cache"
    if ! new_enough "$include"; then
        # The headers of the next Debian release, unpacked into the cache; nothing of it is installed.
        command -v apt-get >/dev/null || fail "the Vulkan headers in $include are older than 1.3.272 (set VULKAN_INCLUDE)"
        lists=$cache/apt
        mkdir -p "$lists/lists/partial"
        echo 'deb http://deb.debian.org/debian trixie main' >"$lists/sources.list"
        set -- -qq -oDir::Etc::sourcelist="$lists/sources.list" -oDir::Etc::sourceparts=/dev/null -oDir::State::Lists="$lists/lists"
        apt-get "$@" update >&2
        (cd "$lists" && apt-get "$@" download libvulkan-dev >&2 && dpkg -x libvulkan-dev_*.deb "$cache/headers")
        include=$cache/headers/usr/include
        rm -rf "$lists"
        new_enough "$include" || fail "the Vulkan headers in $include are older than 1.3.272 (set VULKAN_INCLUDE)"
    fi
    flags="-DGGML_NATIVE=OFF -DLLAVA_BUILD=OFF -DLLAMA_OPENSSL=OFF -DGGML_VULKAN=ON -DVulkan_INCLUDE_DIR=$include"
    CMAKE_ARGS=$flags CMAKE_BUILD_PARALLEL_LEVEL=${JOBS:-$(getconf _NPROCESSORS_ONLN)} \
        "$python" -m pip wheel --quiet --no-cache-dir --no-deps -w "$cache" "llama-cpp-python==$version" >&2
    "$python" -m pip install --quiet --no-deps --target "$cache/part" "$cache"/llama_cpp_python-*.whl >&2
    mv "$cache/part/llama_cpp" "$cache"
    rm -rf "$cache/part" "$cache"/*.whl "$cache/headers"
fi
echo "$cache"
