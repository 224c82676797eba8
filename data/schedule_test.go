package data_test

import (
	"testing"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
)

// Whatever the order in which the device runs its streams, computations see the right batches: copies come first, and neither page-locked
// nor device memory is reused too early. The host never waits within the loop.
func TestSchedules(t *testing.T) {
	const rows, columns = 240, 12
	// Many columns make the copies fall behind the computation, which uses the last column.
	var all []data.Column
	for range columns {
		numbers := make([]int64, rows)
		for i := range numbers {
			numbers[i] = int64(i)
		}
		all = append(all, data.NewColumn(numbers))
	}
	ds, err := data.NewTable(all...)
	if err != nil {
		t.Fatal(err)
	}
	for seed := range uint64(30) {
		dev, err := rt.Open(rt.Selector{Kind: rt.Sim, Wrap: func(other driver.Device) driver.Device {
			if err := other.Close(); err != nil {
				t.Fatal(err)
			}
			d, err := hostsim.New(hostsim.Options{Policy: hostsim.Random(seed)}).Open(0)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}})
		if err != nil {
			t.Fatal(err)
		}
		host, err := rt.Host()
		if err != nil {
			t.Fatal(err)
		}
		x := (*tenon.Exec)(core.New(dev, host))
		l := loader(t, ds, data.LoaderOpt{BatchSize: 8, Shuffle: true, Seed: seed, Workers: 2, Prefetch: 3})
		x.Scope(func(x *tenon.Exec) {
			total := x.Zeros(nil, tenon.Int64)
			for b, err := range l.Epoch(x) {
				if err != nil {
					t.Fatal(err)
				}
				x.Scope(func(x *tenon.Exec) {
					// Squares, so that a sum shows a batch that was seen twice in place of another.
					last := b.Tensors[columns-1]
					x.AddInto(total, total, x.Sum(x.Mul(last, last), nil))
				})
			}
			got, err := x.Item(total)
			if err != nil {
				t.Fatal(err)
			}
			if want := float64((rows - 1) * rows * (2*rows - 1) / 6); got != want {
				t.Errorf("seed %d: the squares of the numbers sum to %v, want %v", seed, got, want)
			}
		})
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	}
}
