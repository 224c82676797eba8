package core

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
)

// launchLog keeps the launches of a device.
type launchLog struct {
	driver.Device
	known []uint64 // addresses that the log shows
	seen  []string
}

func (d *launchLog) Launch(l *driver.Launch) error {
	args := slices.Clone(l.Args)
	for at := 8; at+8 <= len(args); at += 8 {
		if p := binary.LittleEndian.Uint64(args[at:]); p > 1<<32 && !slices.Contains(d.known, p) { // new memory, which may be anywhere
			binary.LittleEndian.PutUint64(args[at:], p%512)
		}
	}
	d.seen = append(d.seen, fmt.Sprint(l.Func, l.Stream, l.Grid, l.Block, l.Shared, args, l.Waits))
	return d.Device.Launch(l)
}

// A launch that repeats another one is the launch that planning it anew gives.
func TestRepeatedLaunches(t *testing.T) {
	var d *launchLog
	x, _ := simExec(t, func(real driver.Device) driver.Device { d = &launchLog{Device: real}; return d })
	side, err := x.Device().Stream()
	if err != nil {
		t.Fatal(err)
	}
	types := []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Float16, dtype.Float64, dtype.Int32, dtype.Int64, dtype.Uint8, dtype.Bool,
		dtype.Complex64}
	rng := rand.New(rand.NewPCG(1, 2))
	operand := func(n int) *Tensor {
		all := x.Ones([]int{2, 48}, types[rng.IntN(len(types))])
		if rng.IntN(4) == 0 {
			return x.Narrow(x.View(all, 96), 0, 1+rng.IntN(15), n) // at a multiple of less than 16 bytes
		}
		return x.Narrow(x.View(all, 96), 0, 0, n)
	}
	unary := []func(x *Exec, a *Tensor) *Tensor{(*Exec).Abs, (*Exec).ReLU, (*Exec).Sin, (*Exec).IsNaN, func(x *Exec, a *Tensor) *Tensor {
		return x.AddS(a, float64(rng.IntN(4)))
	}, func(x *Exec, a *Tensor) *Tensor { return x.MulS(a, rng.Float64()) },
		func(x *Exec, a *Tensor) *Tensor { return x.GtS(a, float64(rng.IntN(2))) },
		func(x *Exec, a *Tensor) *Tensor { return x.LeakyReLU(a, LeakyReLUOpt{Slope: rng.Float64()}) }}
	binary := []func(x *Exec, a, b *Tensor) *Tensor{(*Exec).Mul, (*Exec).Div, (*Exec).Maximum, (*Exec).Lt,
		func(x *Exec, a, b *Tensor) *Tensor { return x.Where(x.Gt(a, b), a, b) },
		func(x *Exec, a, b *Tensor) *Tensor { return x.Add(a, x.Select(b, 0, 0)) },
		func(x *Exec, a, b *Tensor) *Tensor { return x.AddScaled(a, b, rng.Float64()) }}
	hits := 0
	for range 4000 {
		x.Scope(func(x *Exec) {
			y, n := x, []int{1, 8, 47, 48}[rng.IntN(4)]
			if rng.IntN(4) == 0 {
				y = x.On(side)
			}
			a, b := operand(n), operand(n)
			if rng.IntN(2) == 0 { // of one type, like most
				b = a
			}
			d.known = []uint64{a.ptr(), b.ptr()}
			var f func() error
			if rng.IntN(2) == 0 {
				i := rng.IntN(len(binary))
				f = func() error { return Try(func() { binary[i](y, a, b) }) }
			} else {
				i := rng.IntN(len(unary))
				f = func() error { return Try(func() { unary[i](y, a) }) }
			}
			seed := rng.Uint64()
			run := func() (list []string, err error) {
				x.Scope(func(*Exec) {
					*rng = *rand.New(rand.NewPCG(seed, 0))
					d.seen = nil
					err = f()
					list = d.seen
				})
				return list, err
			}
			before := x.s.repeated
			got, err1 := run()
			kept := x.s.repeated
			x.s.repeated = [repeatSlots]repeated{}
			want, err2 := run()
			if fmt.Sprint(err1) != fmt.Sprint(err2) || !slices.Equal(got, want) {
				t.Fatalf("repeated:\n%v %v\nplanned:\n%v %v", got, err1, want, err2)
			}
			if kept == before && x.s.repeated != ([repeatSlots]repeated{}) {
				hits++
			}
			x.s.repeated = kept
		})
	}
	if hits < 100 {
		t.Errorf("%d launches were repeated; want at least 100", hits)
	}
}
