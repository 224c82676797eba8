package compile_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
)

// Memory that a recording does not use any more rests while there is room below the peak, so that what is written next need not wait for
// what read it, and the peak stays.
func TestMemoryRests(t *testing.T) {
	const n, size = 256, 256 * 256 * 4
	run := func(first int, do func(x *tenon.Exec, f func(x *tenon.Exec) error) error) (places int, peak int64) {
		x := openOn(t, tenon.Sim(0)).NoGrad()
		must(t, x.Generator().SetSeed(3))
		a := x.RandN([]int{n, n}, tenon.Float32)
		step := func() {
			var sum *tenon.Tensor
			must(t, do(x, func(x *tenon.Exec) error {
				var y *tenon.Tensor
				x.Scope(func(x *tenon.Exec) {
					z := x.Repeat(a, first, 1)
					y = x.Keep(x.MatMul(a, x.Narrow(z, 0, 0, n)))
				})
				for range 6 {
					z := x.Softmax(y, 0)
					y.Close()
					y = x.Softmax(z, 1)
					z.Close()
				}
				sum = x.Keep(x.Sum(y, nil))
				y.Close()
				return nil
			}))
			sum.Close()
		}
		must(t, x.Device().RecordMemoryHistory(cuda.History{MaxEntries: 10_000}))
		for range 4 {
			step()
		}
		s, err := x.Device().Snapshot()
		must(t, err)
		seen := map[uint64]bool{}
		for _, e := range s.Trace(0) {
			if e.Action == "alloc" && e.Size == size {
				seen[e.Addr] = true
			}
		}
		return len(seen), x.Device().MaxMemoryAllocated()
	}
	eager := func(x *tenon.Exec, f func(x *tenon.Exec) error) (err error) {
		x.Scope(func(x *tenon.Exec) { err = f(x) })
		return err
	}
	for _, first := range []int{1, 12} {
		_, want := run(first, eager)
		places, peak := run(first, compile.New().Do)
		t.Logf("with %d times as much memory before, tensors are in %d places", first, places)
		if wide := places > 6; wide != (first > 1) {
			t.Errorf("with %d times as much memory before, tensors are in %d places", first, places)
		}
		if peak > want {
			t.Errorf("with %d times as much memory before, the peak is %d bytes, %d without a region", first, peak, want)
		}
	}
}

// Resting memory raises the peak of the recording by a thirty-second at most, where results take over the memory of operands, where inputs
// are copied, and beside a workspace.
func TestRestingKeepsPeak(t *testing.T) {
	for _, c := range []struct {
		name  string
		most  int64 // KiB, as without rest
		moves bool  // inputs are other tensors in each run, so they are copied
		f     func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor
	}{
		{"takeovers", 1080, false, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
			var sums []*tenon.Tensor
			for i := range 6 {
				x.Scope(func(x *tenon.Exec) {
					y := x.Tanh(x.Exp(x.Neg(x.Flip(in[i], 0))))
					sums = append(sums, x.Keep(x.MatMul(y, x.Narrow(in[7], 1, 0, 2))))
				})
			}
			return x.Stack(sums, 0)
		}},
		{"copies", 9274, true, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
			var all []*tenon.Tensor
			for i := range 7 {
				x.Scope(func(x *tenon.Exec) {
					all = append(all, x.Keep(x.MatMul(x.Flip(in[i], 0), x.Narrow(in[7], 1, 0, 2))))
				})
			}
			for i := range 7 {
				all = append(all, x.MatMul(in[i], x.Narrow(in[7], 1, 2, 2)))
			}
			return x.Repeat(x.Stack(all, 0), 1, 1, 150)
		}},
		{"workspace", 10240, false, func(x *tenon.Exec, in []*tenon.Tensor) *tenon.Tensor {
			var a, b *tenon.Tensor
			x.Scope(func(x *tenon.Exec) {
				y := x.Flip(x.Repeat(in[0], 1, 5), 0)
				a = x.Keep(x.MatMul(x.Narrow(in[1], 0, 0, 2), x.Narrow(y, 1, 0, 512)))
			})
			x.Scope(func(x *tenon.Exec) {
				v, _ := x.TopK(x.Reshape(in[2], 512*512), 512)
				b = x.Keep(v)
			})
			return x.Add(x.Sum(a, nil), x.Sum(b, nil))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			x := openOn(t, tenon.Sim(0)).NoGrad()
			must(t, x.Generator().SetSeed(3))
			var in []*tenon.Tensor
			for range 8 {
				in = append(in, x.RandN([]int{512, 512}, tenon.Float32))
			}
			r := compile.New()
			for range 3 {
				if c.moves {
					for i := range in {
						old := in[i]
						in[i] = x.Clone(old)
						defer old.Close()
					}
				}
				x.Device().ResetPeakStats()
				base := x.Device().MemoryAllocated()
				var y *tenon.Tensor
				must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(c.f(x, in)); return nil }))
				if peak := (x.Device().MaxMemoryAllocated() - base) >> 10; peak > c.most+c.most/32 {
					t.Errorf("the peak is %d KiB, %d without rest", peak, c.most)
				}
				y.Close()
			}
			if s := r.Stats(x); s.Recordings != 1 || s.Replays != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// A session of one device can run a region on another one, whose memory rests and is given back there.
func TestRestingOnAnotherDevice(t *testing.T) {
	m := tenon.SimMachine(2, 0)
	first, other := openOn(t, m.At(0)).NoGrad(), openOn(t, m.At(1)).NoGrad()
	x := first.On(other.Device().DefaultStream())
	a := x.Ones([]int{512, 512}, tenon.Float32)
	r := compile.New()
	for range 3 {
		var y *tenon.Tensor
		must(t, r.Do(x, func(x *tenon.Exec) error {
			x.Scope(func(x *tenon.Exec) { y = x.Keep(x.Sum(x.Flip(x.MatMul(x.Flip(a, 0), a), 1), nil)) })
			y = x.Keep(y)
			return nil
		}))
		y.Close()
		if n, m := first.Device().MemoryAllocated(), other.Device().MemoryAllocated(); n != 0 || m != 512*512*4 {
			t.Errorf("%d bytes are in use on the session's device and %d on the other", n, m)
		}
	}
	if s := r.Stats(x); s.Recordings != 1 {
		t.Errorf("%+v", s)
	}
}

// Where the device has no room for memory that rests, the region is recorded without rest.
func TestRestingGivesWay(t *testing.T) {
	const mib = 1 << 20
	for size := uint64(30 * mib); ; size += 2 * mib {
		if size > 200*mib {
			t.Fatal("the region runs on no device")
		}
		x := openOn(t, tenon.Sim(size)).NoGrad()
		a := x.Ones([]int{512, 512}, tenon.Float32)
		r := compile.New()
		runs, err := 0, error(nil)
		for ; runs < 3 && err == nil; runs++ {
			var y *tenon.Tensor
			err = r.Do(x, func(x *tenon.Exec) error {
				x.Scope(func(x *tenon.Exec) {
					var sum *tenon.Tensor
					x.Scope(func(x *tenon.Exec) { sum = x.Keep(x.Sum(x.Flip(x.MatMul(x.Flip(a, 0), a), 1), nil)) })
					y = x.Keep(x.Add(x.Sum(x.Flip(x.Repeat(a, 20, 1), 0), nil), sum))
				})
				y = x.Keep(y)
				return nil
			})
			if err == nil {
				y.Close()
			}
		}
		t.Logf("%d MiB: %d runs, %+v, %v", size/mib, runs, r.Stats(x), err)
		if runs < 2 {
			continue // the first run, which lets nothing rest, fails
		}
		if s := r.Stats(x); err != nil || s.Recordings != 1 || s.Replays != 1 {
			t.Errorf("on a device of %d MiB, which the first run fits: %+v, %v", size/mib, s, err)
		}
		return
	}
}
