package tenon_test

import (
	"errors"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
	"tenon.dev/internal/rt"
)

// small is a device with little memory whose kernels do nothing.
type small struct{ *null.Device }

func refuseLarge(n uint64) error {
	if n > 1<<30 {
		return &driver.Error{Call: "MemAlloc", Code: driver.OutOfMemory}
	}
	return nil
}

func (d small) MemAlloc(t driver.Thread, n uint64) (driver.Ptr, error) {
	if err := refuseLarge(n); err != nil {
		return 0, err
	}
	return d.Device.MemAlloc(t, n)
}

func (d small) HostAlloc(t driver.Thread, n uint64) ([]byte, error) {
	if err := refuseLarge(n); err != nil {
		return nil, err
	}
	return d.Device.HostAlloc(t, n)
}

// openIdle opens a device whose kernels do nothing.
func openIdle() (*tenon.Exec, error) {
	host, err := rt.Host()
	if err != nil {
		return nil, err
	}
	dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(own driver.Device) driver.Device {
		own.Close()
		return small{null.New("")}
	}})
	if err != nil {
		return nil, err
	}
	return (*tenon.Exec)(core.New(dev, host)), nil
}

// idle opens a device whose kernels do nothing, until the test ends.
func idle(t testing.TB) *tenon.Exec {
	x, err := openIdle()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// vast are tensors of more elements than memory could hold: views of one element.
var vast = func() (vs []value) {
	for _, v := range []struct {
		name  string
		dt    tenon.DType
		shape []int
	}{
		{"vast", tenon.Float32, []int{1 << 40}}, {"vast rows", tenon.Float32, []int{1 << 40, 2}},
		{"vast columns", tenon.Float32, []int{2, 1 << 40}},
		{"vast matrix", tenon.Float32, []int{1 << 25, 1 << 15}}, {"vast batch", tenon.BFloat16, []int{1 << 38, 2, 2}},
		{"vast image", tenon.Float32, []int{2, 1 << 10, 1 << 14, 1 << 15}},
		{"vast integers", tenon.Int64, []int{1 << 40}}, {"vast truth", tenon.Bool, []int{1 << 25, 1 << 15}},
		{"vast complex", tenon.Complex128, []int{1 << 25, 1 << 15}},
		{"largest", tenon.Uint8, []int{math.MaxInt}}, {"largest sides", tenon.Float32, []int{1 << 31, 1<<31 - 1}},
		{"largest and nothing", tenon.Float32, []int{math.MaxInt, 0}},
	} {
		vs = append(vs, value{name: v.name, make: func(x *tenon.Exec) any {
			if slices.Contains(v.shape, 0) {
				return x.Empty(v.shape, v.dt)
			}
			return x.Expand(x.Ones([]int{1}, v.dt), v.shape...)
		}})
	}
	return vs
}()

// TestMisuseOfSizes calls operations with tensors of 2^40 elements and more, on a device whose kernels do nothing: an operation's own
// work must take no longer than for any other tensor, and a result that would not fit is refused. The device pretends to have only the
// memory of its own tensors.
func TestMisuseOfSizes(t *testing.T) {
	open := func() *tenon.Exec {
		x := idle(t)
		x.Device().SetGarbageCollection(false) // thousands of calls want memory, and nothing is garbage
		return x
	}
	w := newWalk(t, open(), open())
	w.again = open
	of, list := reflect.TypeFor[*tenon.Tensor](), reflect.TypeFor[[]*tenon.Tensor]()
	turn := 0
	sizes := func(name string, f reflect.Value) {
		t := f.Type()
		with := func(v value) []value { // sound arguments, every tensor is v
			args := w.sound(t, 0)
			for i := range args {
				switch t.In(i) {
				case of:
					args[i] = v
				case list:
					args[i] = value{name: "list of " + v.name, make: func(x *tenon.Exec) any {
						return []*tenon.Tensor{v.make(x).(*tenon.Tensor), v.make(x).(*tenon.Tensor)}
					}}
				}
			}
			return args
		}
		for _, v := range vast {
			all := with(v)
			w.call(name, f, all, "")
			for i := range all {
				if t.In(i) == of || t.In(i) == list {
					args := w.sound(t, 0)
					args[i] = all[i]
					w.call(name, f, args, "")
				}
			}
		}
		for i := range t.NumIn() {
			if t.In(i) == of || t.In(i) == list {
				continue
			}
			for _, u := range w.of(t.In(i)) {
				args := with(vast[turn%len(vast)])
				args[i] = u
				w.call(name, f, args, "")
				turn++
			}
		}
	}
	methods(w.x, sizes, "Close")
	methods((*tenon.Tensor)(nil), sizes)
}

// The processor's device refuses what the machine cannot hold, which the system would give and end the process once it is used.
func TestHostMemory(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	total := int(x.Device().TotalMemory())
	if total == 0 {
		t.Skip("the system does not say how much memory the machine has")
	}
	refused := func(n int) {
		t.Helper()
		err := tenon.Try(func() { x.Empty([]int{n}, tenon.Uint8).Close() })
		if fault.KindOf(err) != fault.OutOfMemory || !strings.Contains(err.Error(), "the host has no room for") {
			t.Errorf("%d of %d bytes: %v, want an error of kind OutOfMemory", n, total, err)
		}
	}
	refused(total + 1<<21)
	refused(16 * total)
	a := x.Empty([]int{total / 4 * 3}, tenon.Uint8) // nobody touches it
	refused(total / 2)
	a.Close()
	if err := errors.Join(x.Device().EmptyCache(), tenon.Try(func() { x.Empty([]int{total / 2}, tenon.Uint8).Close() }),
		x.Device().EmptyCache()); err != nil {
		t.Error(err)
	}
}
