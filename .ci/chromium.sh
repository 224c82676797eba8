#!/bin/sh
# Installs Chromium where it is missing and prints its path, so that the tests of the viewer's page run in a real browser.
# It is Debian's package chromium, through the machine's own package sources; being root or sudo without a password is needed for that.
set -eu
fail() { echo "chromium.sh: $*" >&2; exit 1; }
find_browser() {
	for name in chromium chromium-browser google-chrome google-chrome-stable headless-shell; do
		command -v "$name" && return
	done
	return 1
}

if find_browser; then
	exit 0
fi
command -v apt-get >/dev/null || fail "this machine has no apt; put chromium or google-chrome into PATH instead"
as_root=
if [ "$(id -u)" != 0 ]; then
	sudo -n true 2>/dev/null || fail "chromium is missing and only root can install it: apt-get install chromium"
	as_root="sudo -n"
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT INT TERM
$as_root apt-get -q update >"$log" 2>&1 || { cat "$log" >&2; fail "the package lists could not be read"; }
$as_root env DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends chromium fonts-dejavu-core >"$log" 2>&1 ||
	{ cat "$log" >&2; fail "the package chromium could not be installed"; }
find_browser || fail "the package chromium is installed, but PATH has no browser"
