#!/usr/bin/env bash
# Runs the tests and benchmarks on a GPU, with what bench/pack.sh built, and writes a run file and PyTorch's figures beside it.
# usage, in the repository's root: bench/gpu.sh BINARIES.TXZ RUN-FILE COMMIT [PART...]
# The parts are libcuda rt core agree conformance compile sparse linalg optim nn resnet zoo bench torch digits
# (20 minutes in all, of which conformance takes 6, agree 4, compile 3, core 2 and torch 2; done if none is named), sanitize (2 minutes: the
# planted bugs),
# stress (5 minutes: goroutines that do everything at once, and close),
# profiles (1 minute: profiles of whole programs for docs/profiles.md, in the folder profiles beside the run file),
# pairs (8 minutes: the benchmarks in turns with those of an earlier commit, whose binary and commit are in BEFORE and BEFORE_COMMIT; ROWS
# are the tests, as in -test.run; it leaves RUN.pairs.json),
# torchmax (5 minutes: what PyTorch's compiler reaches with max-autotune, into the file of part torch),
# torchzoo (4 minutes: what it reaches for the models of the zoo, into that file),
# memcheck (4 minutes: tenon memcheck over the tests that run Tenon's kernels; it leaves RUN.kernels.jsonl, .html and .log beside the run
# file) and planted (4 minutes: tenon memcheck over Python, CUDA C++ and Go programs with planted bugs, by memcheck/testdata/runs.sh; it
# leaves pytest.jsonl,
# cuda.jsonl, go.jsonl and their pages there).
set -uo pipefail
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2])' "$1" "$bin" || exit 1 # some machines have no xz
run=$2
commit=$3
parts=" ${*:4} "
[ $# -gt 3 ] || parts=" libcuda rt core agree conformance compile sparse linalg optim nn resnet zoo bench torch digits "
mkdir -p "$(dirname "$run")"
run=$(cd "$(dirname "$run")" && pwd)/$(basename "$run")
status=0
part() { # name, folder, arguments…; the test binary has the folder's name
	local name=$1 dir=$2 start=$SECONDS
	shift 2
	[[ $parts == *" $name "* ]] || return 0
	(cd "$dir" && timeout 580 "$bin/$(basename "$dir").test" -test.v -runfile "$run" -runcommit "$commit" "$@") >"$run.$name.log" 2>&1
	local rc=$?
	printf '%-12s exit %d, %d s: %s\n' "$name" $rc $((SECONDS - start)) "$(grep -E '^(ops:|ok|PASS|FAIL|panic)' "$run.$name.log" | tail -1)"
	grep -E -e '--- FAIL' "$run.$name.log" | head -5
	[ $rc -eq 0 ] || status=1
}
part libcuda internal/driver/libcuda
part rt internal/rt
part core internal/core
part agree internal/agree -sweep
part conformance conformance -device cuda
part stress conformance -device cuda -test.run '^TestStress$' -stress 5m
part compile compile -device cuda
part sparse sparse
part linalg linalg
part optim optim
part nn nn
part resnet internal/resnet
part zoo internal/zoo -long
part bench bench
part profiles bench -test.run '^TestProfiles$' -profiles "$(dirname "$run")/profiles"
part pairs bench -test.run '^TestPairs$' -test.timeout 0 -pairs "${run%.json}.pairs.json" -before "${BEFORE:+$(realpath "$BEFORE")}" \
	-beforecommit "${BEFORE_COMMIT:-}" -rows "${ROWS:-.}"
# not the planted tests themselves, one of which hangs
part sanitize internal/sanitize -test.run '^Test(Matrix|TensorsOnSimulator|KernelsAre)'
part memcheck internal/sanitize -test.run '^TestCommandOn' -results "${run%.json}.kernels"
if [[ $parts == *" memcheck "* && ! -s ${run%.json}.kernels.jsonl ]]; then
	reason=$(grep -E 'needs an NVIDIA GPU|neither compute-sanitizer' "$run.memcheck.log" | head -1)
	echo "memcheck     there are no results of compute-sanitizer: $reason"
	status=1
fi
if [[ $parts == *" memcheck "* ]]; then
	grep -E '0 findings, |\.test: [0-9]+ tests? in ' "$run.memcheck.log"
fi
if [[ $parts == *" planted "* ]]; then
	memcheck/testdata/runs.sh "$(dirname "$run")" "$bin/tenon" "$bin/sanitize.test" || status=1
	part planted memcheck -test.run '^TestPlantedRuns$' -journals "$(dirname "$run")"
	grep -E 'runs as planted' "$run.planted.log"
fi
if [[ $parts == *" bench "* ]]; then
	grep -E '(µs|TB/s|TFLOP/s|ms|launches|allocs/op) +\(' "$run.bench.log"
fi
if [[ $parts == *" torch "* ]]; then
	python3 bench/torch_bench.py "${run%.json}.torch.json" >"$run.torch.log" 2>&1 || status=1
fi
if [[ $parts == *" torchmax "* ]]; then
	python3 bench/torch_bench.py "${run%.json}.torch.json" --add --group resnet_compiled --seconds 500 >"$run.torchmax.log" 2>&1 || status=1
fi
if [[ $parts == *" torchzoo "* ]]; then
	python3 bench/torch_bench.py "${run%.json}.torch.json" --add --group zoo_compiled --seconds 300 >"$run.torchzoo.log" 2>&1 || status=1
fi
if [[ $parts == *" digits "* ]]; then
	"$bin/digits" -epochs 20 -svg "$run.digits.svg" | tail -2
	"$bin/tenon" doctor
fi
exit $status
