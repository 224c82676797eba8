#!/usr/bin/env bash
# Runs tenon memcheck over the planted programs - a Python file, a CUDA C++ program and compiled Go tests - under compute-sanitizer's four
# tools, on a machine with an NVIDIA GPU, the CUDA toolkit and PyTorch, and leaves the journals pytest.jsonl, cuda.jsonl and go.jsonl, and a
# report's page for each.
# usage: memcheck/testdata/runs.sh OUT-FOLDER TENON GO-TEST-BINARY   (the last is internal/sanitize with -tags planted)
set -uo pipefail
mkdir -p "$1"
out=$(cd "$1" && pwd)
tenon=$(realpath "$2")
planted_go=$(realpath "$3")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here/cuda/planted.cu" "$here/pytest/test_planted.py" "$work/"
cp "$planted_go" "$work/planted.test"
cd "$work" || exit 2
nvcc -O1 -lineinfo -arch=native -o planted planted.cu -lcublas || exit 2
run() { # name, arguments…: tests fail, so the status must be 1
	local name=$1 began=$SECONDS
	shift
	"$tenon" memcheck run "$@" --tool all --nproc 8 --gpus 0:0:0:0:0:0:0:0 --out "$name" >"$name.log" 2>&1
	local status=$?
	cp "$name/result.jsonl" "$out/$name.jsonl"
	cp "$name/result.html" "$out/$name.html"
	echo "$name: status $status, $((SECONDS - began)) s: $(tail -1 "$name.log")"
	[ $status -eq 1 ]
}
failed=0
run go planted.test 60 --leaks --stream-order --filter '^Test(Planted|Repaired)' --skip Hang &
first=$!
run cuda planted 20 --list-command './planted --list' --run-command './planted {test}' --stream-order || failed=1
wait $first || failed=1
run pytest test_planted.py 40 || failed=1
exit $failed
