#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# make_dist.sh OUT.tar.gz FILE...: sorts the built files into bin, lib, include and share by their paths, adds the
# shared libraries they need, the pkg-config file, and packs it all so that the same input gives the same bytes.
set -euo pipefail
export LC_ALL=C

out=$1
shift
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT

header=
for file in "$@"; do
    case $file in runtime/eng.h) header=$file ;; esac
done
version=$(sed -n 's/^#define ENG_VERSION_TEXT "\(.*\)"$/\1/p' "$header")
if [ -z "$version" ]; then
    echo "make_dist: runtime/eng.h defines no ENG_VERSION_TEXT" >&2
    exit 1
fi
root=$stage/eng-$version

for file in "$@"; do
    # Built files lie under bazel-out/CONFIG/bin/, sources under the root of the tree.
    case ${file#bazel-out/*/bin/} in
        builder/* | runtime/engrun | runtime/engbench | runtime/enginfo | runtime/engserve | tests/gpu/*) target=bin/${file##*/} mode=755 ;;
        tests/bench/collectives_bench) target=bin/collectives-bench mode=755 ;;
        runtime/libeng.so) target=lib/libeng.so.$version mode=755 library=$file ;;
        runtime/libeng.a) target=lib/libeng.a mode=644 ;;
        runtime/eng.h | runtime/eng_cuda.h) target=include/${file##*/} mode=644 ;;
        runtime/examples/*) target=share/doc/eng/examples/${file##*/} mode=644 ;;
        tests/models/*) target=share/eng/${file#tests/} mode=644 ;;
        *.md | LICENSE) target=share/doc/eng/${file##*/} mode=644 ;;
        *) echo "make_dist: no place for $file" >&2; exit 1 ;;
    esac
    install -D -m "$mode" "$file" "$root/$target"
done

# The name that programs ask for when they start, and the one that the linker finds.
soname=$(readelf -d "$library" | sed -n 's/.*(SONAME).*\[\(.*\)\]$/\1/p')
ln -s "libeng.so.$version" "$root/lib/$soname"
ln -s "$soname" "$root/lib/libeng.so"

binaries=("$root"/bin/* "$root/lib/libeng.so.$version")
strip --strip-unneeded "${binaries[@]}"

# Notices of all code of others that travels along, from the Debian packages that it comes from. A tarball without them
# may not be passed on, so none is made.
notices=$root/share/doc/eng/licenses
third_party=$root/share/doc/eng/THIRD_PARTY
common=/usr/share/common-licenses
add_notice() { # NAME PATH
    local name=$1 real package version licence file
    real=$(readlink -f "$2")
    # Before /lib became a link, packages were recorded with its files there.
    package=$(dpkg-query -S "$real" 2>/dev/null || dpkg-query -S "${real#/usr}" 2>/dev/null) || {
        echo "make_dist: $real: expected a Debian package that holds it, found none; without its licence it cannot be bundled" >&2
        exit 1
    }
    package=${package%%:*}
    version=$(dpkg-query -W -f '${Version}\n' "$package" | head -1)
    file=/usr/share/doc/$package/copyright
    if [ ! -s "$file" ]; then
        echo "make_dist: $file is missing: without the licence of $name it cannot be bundled; install $package anew" >&2
        exit 1
    fi
    install -D -m 644 "$file" "$notices/$name.txt"
    for text in $(grep -o "$common/[A-Za-z0-9.-]*[A-Za-z0-9]" "$file"); do
        install -m 644 "$text" "$notices/${text##*/}"
    done
    licence=$(awk '/^Files: \*$/ {own = 1} own && sub(/^License: */, "") {print; exit}' "$file")
    printf '%s\t%s\t%s\t%s\tlicenses/%s.txt\n' "$name" "$package" "$version" "${licence:-see the notice}" "$name" >>"$third_party"
}

cat >"$third_party" <<'EOT'
# Code of others in this tarball: file, Debian package, version, licence, notice.
# A notice is that of the whole package, and may name licences of parts that are not here.
EOT
install -D -m 644 "$common/Apache-2.0" "$notices/Apache-2.0"
# A library of headers alone: its code is in every program and in libeng.
add_notice xxhash.h /usr/include/xxhash.h

# Libraries besides the C library travel along; RUNPATH finds them.
libraries=$(ldd "${binaries[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u)
while read -r name path; do
    case $name in
        libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux* | libgcc_s.so.*) continue ;;
    esac
    case $path in "$root"/*) continue ;; esac
    install -D -m 644 "$path" "$root/lib/$name"
    add_notice "$name" "$path"
done <<<"$libraries"

mkdir -p "$root/lib/pkgconfig"
cat >"$root/lib/pkgconfig/eng.pc" <<EOF
prefix=\${pcfiledir}/../..
libdir=\${prefix}/lib
includedir=\${prefix}/include

Name: eng
Description: replays ahead-of-time compiled language model engines
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -leng
Libs.private: -ljansson -lpcre2-8 -lutf8proc -lsodium -lz -lm -lpthread
EOF

tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$stage" "eng-$version" |
    gzip -n -9 >"$out"
