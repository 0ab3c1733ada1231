#!/bin/bash
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
        builder/* | runtime/engrun | runtime/engbench | runtime/enginfo | tests/gpu/*) target=bin/${file##*/} mode=755 ;;
        tests/bench/collectives_bench) target=bin/collectives-bench mode=755 ;;
        runtime/libeng.so) target=lib/libeng.so mode=755 ;;
        runtime/libeng.a) target=lib/libeng.a mode=644 ;;
        runtime/eng.h) target=include/eng.h mode=644 ;;
        runtime/examples/*) target=share/doc/eng/examples/${file##*/} mode=644 ;;
        tests/models/*) target=share/eng/${file#tests/} mode=644 ;;
        *.md) target=share/doc/eng/${file##*/} mode=644 ;;
        *) echo "make_dist: no place for $file" >&2; exit 1 ;;
    esac
    install -D -m "$mode" "$file" "$root/$target"
done

binaries=("$root"/bin/* "$root"/lib/libeng.so)
strip --strip-unneeded "${binaries[@]}"

# Libraries besides the C library travel along, with their licenses; RUNPATH finds them.
ldd "${binaries[@]}" | awk '$2 == "=>" && $3 ~ /^\// {print $1, $3}' | sort -u |
    while read -r name path; do
        case $name in
            libc.so.* | libm.so.* | libpthread.so.* | libdl.so.* | librt.so.* | ld-linux* | libgcc_s.so.*) continue ;;
        esac
        case $path in "$root"/*) continue ;; esac
        install -D -m 644 "$path" "$root/lib/$name"
        package=$(dpkg -S "*/$(basename "$(readlink -f "$path")")" 2>/dev/null | head -1 | cut -d: -f1) || true
        if [ -n "$package" ] && [ -e "/usr/share/doc/$package/copyright" ]; then
            install -D -m 644 "/usr/share/doc/$package/copyright" "$root/share/doc/eng/licenses/$name.txt"
        fi
    done

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
Libs.private: -ljansson -lpcre2-8 -lutf8proc -lz -lm -lpthread
EOF

tar --create --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner --format=ustar -C "$stage" "eng-$version" |
    gzip -n -9 >"$out"
