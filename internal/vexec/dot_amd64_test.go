package vexec

import (
	"math/rand"
	"testing"
	"unsafe"
)

func TestDotMachineCode(t *testing.T) {
	f := detect()
	if !f.avx2 {
		t.Skip("this processor has no AVX2")
	}
	checkDot[float32](t, "AVX2", dotF32AVX2)
	checkDot[float64](t, "AVX2", dotF64AVX2)
	if f.avx512 {
		checkDot[float32](t, "AVX-512", dotF32AVX512)
		checkDot[float64](t, "AVX-512", dotF64AVX512)
	}
}

// TestGatherMachineCode compares gathers with the plain ones, with and without masks, and with one index out of bounds at any position.
func TestGatherMachineCode(t *testing.T) {
	if !detect().avx2 {
		t.Skip("this processor has no AVX2")
	}
	r := rand.New(rand.NewSource(4))
	words := make([]uint32, 500)
	for i := range words {
		words[i] = r.Uint32()
	}
	mem := unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), 4*len(words))
	for range 2000 {
		n := 1 + r.Intn(200)
		off := r.Intn(200) - 100
		idx32, idx64, b := make([]int32, n+laneSlack), make([]int64, n+laneSlack), make([]uint8, n+laneSlack)
		for i := range n {
			idx32[i] = int32(r.Intn(len(words)) - off)
			b[i] = uint8(r.Intn(2))
		}
		if bad := r.Intn(2 * n); bad < n {
			idx32[bad] = []int32{int32(len(words) - off), int32(-1 - off), -1 << 31, 1<<31 - 1}[r.Intn(4)]
		}
		for i, v := range idx32 {
			idx64[i] = int64(v)
			if r.Intn(300) == 0 {
				idx64[i] += 1 << 32
			}
		}
		mask := b
		if r.Intn(2) == 0 {
			mask = nil
		}
		same := func(name string, fast, plain gatherFunc, idx unsafe.Pointer) {
			x, y := make([]uint32, n+laneSlack), make([]uint32, n+laneSlack)
			gx := fast(unsafe.Pointer(&x[0]), nil, 0, idx, mem, int64(4*off), 4, mask, n)
			gy := plain(unsafe.Pointer(&y[0]), nil, 0, idx, mem, int64(4*off), 4, mask, n)
			if gx != gy {
				t.Fatalf("%s did %d of %d lanes, want %d", name, gx, n, gy)
			}
			for i := range gx {
				if x[i] != y[i] {
					t.Fatalf("%s: lane %d is %#x, want %#x", name, i, x[i], y[i])
				}
			}
		}
		same("32-bit indexes", gather4[int32](avxGather32), gather[uint32, int32], unsafe.Pointer(&idx32[0]))
		same("64-bit indexes", gather4[int64](avxGather64), gather[uint32, int64], unsafe.Pointer(&idx64[0]))
	}
}

func TestTurnMachineCode(t *testing.T) {
	if !detect().avx2 {
		t.Skip("this processor has no AVX2")
	}
	checkTurn[uint32](t, "4 bytes", turn32AVX2)
	checkTurn[uint64](t, "8 bytes", turn64AVX2)
}
