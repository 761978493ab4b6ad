#!/bin/sh
# install.sh BUILT PREFIX: installs libslat, slat.h and slat.pc as `cargo cinstall` would. BUILT is cargo's output
# folder, such as target/release.
set -eu
[ $# -eq 2 ] || { echo "usage: install.sh BUILT PREFIX" >&2; exit 2; }
here=$(dirname "$0") built=$1
mkdir -p "$2/include" "$2/lib/pkgconfig"
prefix=$(cd "$2" && pwd)
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/Cargo.toml" "$here/../../Cargo.toml" 2>/dev/null | head -1)
cp "$here/slat.h" "$prefix/include/"
cp "$built/libslat_c.a" "$prefix/lib/libslat.a"
[ ! -f "$built/libslat_c.so" ] || cp "$built/libslat_c.so" "$prefix/lib/libslat.so"
sed "s|@prefix@|$prefix|; s|@version@|$version|" "$here/slat.pc.in" >"$prefix/lib/pkgconfig/slat.pc"
