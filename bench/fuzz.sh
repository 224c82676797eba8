#!/usr/bin/env bash
# Runs every fuzz target of bench/fuzz.txt from compiled test binaries, on a machine without Go, and writes how often each was executed into
# a run file.
# usage, in the repository's root:
#   bench/fuzz.sh pack FUZZ.TXZ                                   where Go is: builds the binaries
#   bench/fuzz.sh run FUZZ.TXZ RUN-FILE COMMIT [EXECUTIONS]       there: 100,000,000 executions in all, if it does not say otherwise
# The logs are left in RUN-FILE.fuzz, with the inputs that made a target fail. Then the status is 1. Targets whose logs are there are not
# run again.
set -uo pipefail
targets() { grep -v '^#' bench/fuzz.txt; }
binary() { # package
	local name=${1//\//_}
	echo "$bin/${name/#./tenon}.test"
}
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
if [[ ${1:-} == pack && $# == 2 ]]; then
	set -e
	mkdir -p "$(dirname "$2")"
	for pkg in $(targets | cut -d' ' -f1 | sort -u); do
		CGO_ENABLED=0 go test -c -fuzz . -ldflags='-s -w' -o "$(binary "$pkg")" "./$pkg"
	done
	CGO_ENABLED=0 go test -c -ldflags='-s -w' -o "$bin/bench.test" ./bench
	tar -C "$bin" -c . | xz -T0 --lzma2=preset=6,dict=256MiB >"$2" # the dictionary finds what the binaries share
	du -sh "$2"
	exit 0
fi
if [[ ${1:-} != run || $# -lt 4 ]]; then
	sed -n '2,6s/^# //p' "$0"
	exit 2
fi
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$2" "$bin" || exit 1 # some machines have no xz
mkdir -p "$(dirname "$3")"
run=$(cd "$(dirname "$3")" && pwd)/$(basename "$3")
executions=${5:-100000000}
logs=$run.fuzz
mkdir -p "$logs"
status=0
while read -r pkg target _ part; do
	log=$logs/$(basename "$(binary "$pkg")" .test).$target.log
	! grep -qs '^PASS' "$log" || continue # an earlier run, which was cut off, did it
	start=$SECONDS
	(cd "$pkg" && "$(binary "$pkg")" -test.run '^$' -test.fuzz "^$target\$" -test.fuzztime "$((executions / 1000 * part))x" \
		-test.fuzzminimizetime 100x -test.fuzzcachedir "$bin/cache") >"$log" 2>&1 </dev/null
	rc=$?
	printf '%-16s %-18s exit %d, %d s: %s\n' "$pkg" "$target" $rc $((SECONDS - start)) "$(grep -o 'execs: [0-9]*' "$log" | tail -1)"
	if [ $rc -ne 0 ]; then
		status=1
		failing=$(sed -n 's/^ *Failing input written to //p' "$log" | tail -1)
		[ -z "$failing" ] || mv "$pkg/$failing" "${log%.log}.input"
	fi
done < <(targets)
(cd bench && "$bin/bench.test" -test.run '^TestFuzzRuns$' -fuzzlogs "$logs" -runfile "$run" -runcommit "$4" -device sim) || status=1
exit $status
