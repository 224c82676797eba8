#!/usr/bin/env bash
# Records what compute-sanitizer says of the planted programs, on a machine with an NVIDIA GPU, the CUDA toolkit and PyTorch.
# usage, in the repository's root: memcheck/testdata/record.sh OUT.tgz [GO-TEST-BINARY]
# The archive holds one file for each run, named TOOL-SUITE-NAME.txt, with both output streams as they came, and runs.tsv: file, exit
# status, seconds, command.
set -uo pipefail
out=$1
planted_go=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
here=$(cd "$(dirname "$0")" && pwd)
mkdir "$work/rec"
san=$(command -v compute-sanitizer || ls -d /usr/local/cuda*/bin/compute-sanitizer | tail -1)
"$san" --version >"$work/rec/version.txt" 2>&1
cp "$here/cuda/planted.cu" "$work/"
(cd "$work" && nvcc -O1 -lineinfo -arch=native -o planted planted.cu -lcublas) || echo "nvcc failed"

one() { # tool, suite, name, limit in seconds, options and command…
	local tool=$1 suite=$2 name=$3 limit=$4 file=$1-$2-$3.txt
	shift 4
	local t=$(date +%s%3N)
	(cd "$work" && timeout -k 5 "$limit" "$san" --tool "$tool" --error-exitcode 66 "$@") >"$work/rec/$file" 2>&1
	local rc=$?
	printf '%s\t%d\t%d ms\tcompute-sanitizer --tool %s --error-exitcode 66 %s\n' \
		"$file" $rc $(($(date +%s%3N) - t)) "$tool" "${*//"$work/"/}" >>"$work/rec/runs.tsv"
}
many() { # at most so many at a time
	while [ "$(jobs -rp | wc -l)" -ge 10 ]; do wait -n; done
}
leak="--leak-check full"
few="--print-limit 4" # enough of a report whose groups are alike
for c in clean blas oob_write oob_before oob_shared oob_local null_write misaligned double_free copy_past api_error trap host_crash \
	host_fails; do
	many; one memcheck cuda $c 60 ./planted $c &
done
for c in blas_short oob_read use_after_free assert; do many; one memcheck cuda $c 60 $few ./planted $c & done
for c in clean leak async_leak oob_write; do many; one memcheck leak $c 60 $leak ./planted $c & done
for c in clean stream_order stream_order_free; do many; one memcheck order $c 60 $few --track-stream-ordered-races all ./planted $c & done
for c in clean race_read race_write race_reread oob_shared; do many; one racecheck cuda $c 60 ./planted $c & done
for c in clean race_read race_reread; do many; one racecheck hazard $c 60 $few --racecheck-report hazard ./planted $c & done
for c in race_read; do many; one racecheck all $c 60 $few --racecheck-report all ./planted $c & done
for c in clean uninit_copy; do many; one initcheck cuda $c 60 ./planted $c & done
for c in uninit uninit_half; do many; one initcheck cuda $c 60 $few ./planted $c & done
for c in clean uninit; do many; one initcheck unused $c 60 --track-unused-memory ./planted $c & done
for c in clean barrier_divergent barrier_exited warp_mask; do many; one synccheck cuda $c 60 $few ./planted $c & done
for c in hang; do many; one memcheck cuda $c 15 ./planted $c & done
wait
cp "$here/pytest/test_planted.py" "$work/"
export PYTORCH_NO_CUDA_MEMORY_CACHING=1
py() { one "$1" pytest "$2" "$3" $few python3 -m pytest -q -p no:cacheprovider "test_planted.py::$4"; }
many; py memcheck clean 120 TestPlanted::test_clean_cuda &
many; py memcheck out_of_bounds 120 TestPlanted::test_out_of_bounds_cuda &
many; py memcheck fails 120 TestPlanted::test_fails_cuda &
many; py memcheck only_cpu 120 TestPlanted::test_only_cpu &
many; one memcheck nocuda only_cpu 120 --require-cuda-init no \
	python3 -m pytest -q -p no:cacheprovider test_planted.py::TestPlanted::test_only_cpu &
many; py memcheck hang 60 TestPlanted::test_hang_cuda &
many; py memcheck product 120 test_product_cuda &
many; py memcheck convolution 120 test_convolution_cuda &
many; py memcheck fourier 120 test_fourier_cuda &
many; py racecheck race 120 TestPlanted::test_race_cuda &
many; py racecheck clean 120 TestPlanted::test_clean_cuda &
many; py initcheck uninitialised 120 TestPlanted::test_uninitialised_cuda &
many; py initcheck clean 120 TestPlanted::test_clean_cuda &
many; py synccheck half_barrier 120 TestPlanted::test_half_barrier_cuda &
many; py synccheck clean 120 TestPlanted::test_clean_cuda &
wait
(cd "$work" && timeout 60 python3 -m pytest --setup-only -p no:cacheprovider test_planted.py) >"$work/rec/setup-only.txt" 2>&1
if [ -n "$planted_go" ]; then
	cp "$planted_go" "$work/planted.test"
	export TENON_LINE_INFO=1 TENON_CHECK_TOOLS=memcheck,leaks
	for c in $(cd "$work" && ./planted.test -test.list '^Test(Planted|Repaired)' | grep -v Hang); do
		for t in memcheck racecheck initcheck synccheck; do
			opts=$few
			[ $t = memcheck ] && opts="$few $leak --track-stream-ordered-races all"
			many; one $t go "${c#Test*ed}" 60 $opts ./planted.test -test.run "^$c\$" -test.v &
		done
	done
	wait
	# The report in a file of its own, as the runner asks for it.
	one memcheck logfile StorePast 60 --require-cuda-init no --log-file log.txt ./planted.test -test.run '^TestPlantedStorePast$' -test.v
	cp "$work/log.txt" "$work/rec/memcheck-logfile-StorePast.log.txt"
fi
# Reports of clean Go runs say no more than those of other clean runs, and folders are this machine's.
grep -lE '^========= (ERROR SUMMARY: 0|RACECHECK SUMMARY: 0)' "$work"/rec/*-go-*.txt | grep -v Streams | xargs -r rm
sed -i -E 's#/[^ "]*/site-packages/#site-packages/#g; s#^rootdir: .*#rootdir: /src#' "$work"/rec/*.txt
tar -czf "$out" -C "$work/rec" .
cut -f1-3 "$work/rec/runs.tsv" | sort
