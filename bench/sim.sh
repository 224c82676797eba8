#!/usr/bin/env bash
# Measures what needs no GPU: the processor as a device, the allocator, history, the viewer, and the memory checker. Nothing else may run
# meanwhile.
# usage, in the repository's root: bench/sim.sh RUN-FILE COMMIT [PART...]
# The parts are bench (2 minutes), memcheck (1 minute) and tests (4 minutes: those that a GPU's run has too, on the simulator).
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$(dirname "$1")"
run=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
commit=$2
parts=" ${*:3} "
[ $# -gt 2 ] || parts=" bench memcheck tests "
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
measure() { # package's folder, arguments…
	local dir=$1
	shift
	go test -c -o "$bin/$(basename "$dir").test" "./$dir"
	(cd "$dir" && "$bin/$(basename "$dir").test" -runfile "$run" -runcommit "$commit" "$@") |
		grep -E '^(---|[a-zA-Z.]+ +[0-9.e+]+ |Benchmark|PASS|FAIL)'
}
if [[ $parts == *" bench "* ]]; then
	measure bench -device sim -long
fi
if [[ $parts == *" memcheck "* ]]; then
	measure memcheck -test.run '^TestLargeOutput$'
	measure memcheck -test.run '^$' -test.bench Instant -test.count 3
	measure internal/sanitize -test.run '^Test(MatrixOnSimulator|KernelsAreCleanOnSimulator)$' -long
fi
if [[ $parts == *" tests "* ]]; then
	for dir in internal/rt internal/core internal/agree conformance optim; do
		measure "$dir" -test.v | grep -E '^(--- FAIL|PASS|FAIL)'
	done
fi
