#!/usr/bin/env bash
# Runs the tests and benchmarks on a GPU, with what bench/pack.sh built, and writes a run file and PyTorch's figures beside it.
# usage, in the repository's root: bench/gpu.sh BINARIES.TGZ RUN-FILE COMMIT
set -uo pipefail
bin=$(mktemp -d)
trap 'rm -rf "$bin"' EXIT
tar -xzf "$1" -C "$bin"
run=$2
commit=$3
mkdir -p "$(dirname "$run")"
run=$(cd "$(dirname "$run")" && pwd)/$(basename "$run")
status=0
part() { # name, folder, command…
	local name=$1 dir=$2 start=$SECONDS
	shift 2
	(cd "$dir" && timeout 240 "$@") >"$run.$name.log" 2>&1
	local rc=$?
	printf '%-12s exit %d, %d s: %s\n' "$name" $rc $((SECONDS - start)) "$(grep -E '^(ops:|ok|PASS|FAIL|panic)' "$run.$name.log" | tail -1)"
	grep -E -e '--- FAIL' "$run.$name.log" | head -5
	[ $rc -eq 0 ] || status=1
}
part libcuda internal/driver/libcuda "$bin/libcuda.test" -test.v
part core internal/core "$bin/core.test" -test.v -runfile "$run" -runcommit "$commit"
part agree internal/agree "$bin/agree.test" -test.v -sweep -runfile "$run" -runcommit "$commit"
part conformance conformance "$bin/conformance.test" -test.v -device cuda -runfile "$run" -runcommit "$commit"
part optim optim "$bin/optim.test" -test.v -runfile "$run" -runcommit "$commit"
part bench bench "$bin/bench.test" -test.v -runfile "$run" -runcommit "$commit"
grep -E '(µs|TB/s|TFLOP/s|ms|launches|allocs/op) +\(' "$run.bench.log"
python3 bench/torch_bench.py "${run%.json}.torch.json" >"$run.torch.log" 2>&1 || status=1
"$bin/digits" -epochs 20 | tail -2
"$bin/tenon" doctor
exit $status
