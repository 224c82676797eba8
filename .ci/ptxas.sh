#!/bin/sh
# Gets NVIDIA's PTX assembler into .tools/ and prints its path, so that tests can assemble the PTX that internal/ptx emits.
# It comes from Debian's package nvidia-cuda-toolkit (component non-free) through the machine's own package sources: nothing is
# installed, and of the package only ptxas is kept. Does nothing if it is there already.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
out=$root/.tools/ptxas
fail() { echo "ptxas.sh: $*" >&2; exit 1; }

if [ -x "$out" ] && "$out" --version >/dev/null 2>&1; then
	echo "$out"
	exit 0
fi
command -v apt-get >/dev/null && command -v dpkg-deb >/dev/null ||
	fail "this machine has no apt; put ptxas of any CUDA toolkit from 11.8 on into PATH instead"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT INT TERM
mkdir -p "$tmp/sources.d" "$tmp/lists/partial" "$tmp/cache/archives/partial" "$root/.tools"

# Debian's own sources with the component added; those of other parties stay out.
: >"$tmp/sources.list"
for f in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
	[ -f "$f" ] || continue
	sed -n '/^deb .*debian.* main/s/ main/ main non-free/p' "$f" >>"$tmp/sources.list"
done
for f in /etc/apt/sources.list.d/*.sources; do
	[ -f "$f" ] && grep -qi '^URIs:.*debian' "$f" || continue
	sed 's/^\(Components:.*\)$/\1 non-free/' "$f" >"$tmp/sources.d/$(basename "$f")"
done

apt() {
	apt-get -q -o Dir::Etc::sourcelist="$tmp/sources.list" -o Dir::Etc::sourceparts="$tmp/sources.d" \
		-o Dir::State::lists="$tmp/lists" -o Dir::Cache="$tmp/cache" -o APT::Sandbox::User=root "$@"
}
apt update >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; fail "the package lists could not be read"; }
(cd "$tmp" && apt download nvidia-cuda-toolkit >"$tmp/log" 2>&1) ||
	{ cat "$tmp/log" >&2; fail "the package nvidia-cuda-toolkit could not be downloaded"; }
dpkg-deb --fsys-tarfile "$tmp"/nvidia-cuda-toolkit_*.deb >"$tmp/fs.tar" || fail "the downloaded package is broken"
name=$(tar -tf "$tmp/fs.tar" | grep '/bin/ptxas$' | head -n 1)
[ -n "$name" ] || fail "the package nvidia-cuda-toolkit holds no bin/ptxas"
tar -xf "$tmp/fs.tar" -C "$tmp" "$name"
mv -f "$tmp/$name" "$out.new" && chmod +x "$out.new" && mv -f "$out.new" "$out"
"$out" --version >/dev/null 2>&1 || fail "the extracted ptxas does not run on this machine"
echo "$out"
