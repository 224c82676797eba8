package data_test

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/testdevice"
)

// onDevices runs f on every available kind of device, and checks that f leaves no storages, page-locked memory or goroutines.
func onDevices(t *testing.T, f func(t *testing.T, x *tenon.Exec)) {
	t.Helper()
	devices := map[string]tenon.Selector{"cpu": tenon.CPU(), "sim": tenon.Sim(0)}
	if tenon.GPUs() > 0 {
		devices["cuda"] = tenon.CUDA(0)
	}
	for name, sel := range devices {
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			storages, goroutines := testdevice.Storages(), runtime.NumGoroutine()
			f(t, x)
			if err := x.Device().Synchronize(); err != nil {
				t.Error(err)
			}
			if n := core.LiveStorages() - storages; n != 0 {
				t.Errorf("%d storages are left", n)
			}
			for i := 0; runtime.NumGoroutine() > goroutines && i < 1000; i++ {
				time.Sleep(time.Millisecond) // the simulator's goroutines end by themselves
			}
			if n := runtime.NumGoroutine() - goroutines; n > 0 {
				t.Errorf("%d goroutines are left", n)
			}
			d := (*core.Exec)(x).Device()
			p, err := d.AllocPinned(1) // checks which streams are done
			if err != nil {
				t.Fatal(err)
			}
			if err := p.Free(); err != nil {
				t.Error(err)
			}
			if n := d.PinnedStats().ActiveRequests.Current; n != 0 {
				t.Errorf("%d pieces of page-locked memory are left", n)
			}
			if err := x.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// table has n rows: a 2×3 image of the row's number plus hundredths, and the number.
func table(t *testing.T, n int) *data.Table {
	t.Helper()
	var pixels []float32
	var labels []int64
	for i := range n {
		for j := range 6 {
			pixels = append(pixels, float32(i)+float32(j)/128)
		}
		labels = append(labels, int64(i))
	}
	d, err := data.NewTable(data.NewColumn(pixels, 2, 3), data.NewColumn(labels))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// epoch reads an epoch and checks that every batch holds the rows it says. It returns the rows in order.
func epoch(t *testing.T, x *tenon.Exec, l *data.Loader) (rows [][]int) {
	t.Helper()
	for b, err := range l.Epoch(x) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, b.Rows)
		x.Scope(func(x *tenon.Exec) {
			n := len(b.Rows)
			if !slices.Equal(b.Tensors[0].Shape(), []int{n, 2, 3}) || !slices.Equal(b.Tensors[1].Shape(), []int{n}) {
				t.Fatalf("shapes %v and %v", b.Tensors[0].Shape(), b.Tensors[1].Shape())
			}
			// The read goes through an operation, whose stream must wait for the stream of the copies.
			images, err := tenon.Read[float32](x, x.Add(b.Tensors[0], b.Tensors[0]))
			if err != nil {
				t.Fatal(err)
			}
			labels, err := tenon.Read[int64](x, b.Tensors[1])
			if err != nil {
				t.Fatal(err)
			}
			for i, r := range b.Rows {
				if labels[i] != int64(r) || images[6*i+5] != 2*(float32(r)+5.0/128) {
					t.Fatalf("row %d is image %v with label %d", r, images[6*i:6*i+6], labels[i])
				}
			}
		})
	}
	return rows
}

func loader(t *testing.T, d data.Dataset, opts ...data.LoaderOpt) *data.Loader {
	t.Helper()
	l, err := data.NewLoader(d, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestEpoch(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		d := table(t, 10)
		for _, c := range []struct {
			opt  data.LoaderOpt
			want string
		}{
			{data.LoaderOpt{}, "[[0] [1] [2] [3] [4] [5] [6] [7] [8] [9]]"},
			{data.LoaderOpt{BatchSize: 4, Workers: 3}, "[[0 1 2 3] [4 5 6 7] [8 9]]"},
			{data.LoaderOpt{BatchSize: 4, DropLast: true, Prefetch: 1}, "[[0 1 2 3] [4 5 6 7]]"},
			{data.LoaderOpt{BatchSize: 4, DropLast: true, Prefetch: -1, Workers: 2}, "[[0 1 2 3] [4 5 6 7]]"},
			{data.LoaderOpt{BatchSize: 40, Prefetch: 9, Workers: 5}, "[[0 1 2 3 4 5 6 7 8 9]]"},
		} {
			l := loader(t, d, c.opt)
			got := epoch(t, x, l)
			if fmt.Sprint(got) != c.want || len(got) != l.Len() {
				t.Errorf("%+v: %v in %d batches", c.opt, got, l.Len())
			}
		}
		var part []int64
		for b, err := range loader(t, data.Subset{Of: d, Rows: []int{7, 2}}).Epoch(x) {
			if err != nil {
				t.Fatal(err)
			}
			v, err := tenon.Read[int64](x, b.Tensors[1])
			if err != nil {
				t.Fatal(err)
			}
			part = append(part, v...)
		}
		if !slices.Equal(part, []int64{7, 2}) {
			t.Errorf("the subset has labels %v", part)
		}
		if got := epoch(t, x, loader(t, table(t, 0))); got != nil {
			t.Errorf("an empty table gave %v", got)
		}
	})
}

// With seed 0 the epochs have the order recorded from PyTorch's loader.
func TestRecordedOrder(t *testing.T) {
	run, err := recorded.OpenDigitsRun("../conformance/testdata/digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := loader(t, table(t, 1438), data.LoaderOpt{BatchSize: 64, DropLast: true, Shuffle: true, Workers: 4, Prefetch: 3})
		var got [][]int
		for range 3 {
			got = append(got, epoch(t, x, l)...)
		}
		for step, want := range run.Batches {
			for i := range want {
				if int64(got[step][i]) != want[i] {
					t.Fatalf("step %d: %v, want %v", step, got[step], want)
				}
			}
		}
	})
}

// broken fails at one sample, in one of three ways.
type broken struct {
	data.Dataset
	at   int
	read func(i int) error
}

func (b broken) Read(i int, dst [][]byte) error {
	if i == b.at {
		return b.read(i)
	}
	return b.Dataset.Read(i, dst)
}

func TestReadErrors(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		reason := errors.New("the disk is gone")
		for name, read := range map[string]func(i int) error{
			"error": func(int) error { return reason },
			"panic": func(int) error { panic(fault.Wrap(fault.System, reason, "no tensor")) },
		} {
			l := loader(t, broken{table(t, 100), 57, read}, data.LoaderOpt{BatchSize: 10, Workers: 4, Prefetch: 4})
			batches := 0
			var last error
			for b, err := range l.Epoch(x) {
				if last != nil {
					t.Fatal("the loop went on after an error")
				}
				if last = err; err == nil {
					batches++
				} else if b != nil {
					t.Error("an error came with a batch")
				}
			}
			if batches > 5 || batches < 4 || !errors.Is(last, reason) || !strings.Contains(last.Error(), "sample 57") {
				t.Errorf("%s: after %d batches: %v", name, batches, last)
			}
		}
	})
}

// Leaving the loop early, even by a panic, ends the workers and frees everything.
func TestLeave(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := loader(t, table(t, 1000), data.LoaderOpt{BatchSize: 8, Workers: 4, Prefetch: 5})
		for i := range 20 {
			n := 0
			for _, err := range l.Epoch(x) {
				if err != nil {
					t.Fatal(err)
				}
				if n++; n > i {
					break
				}
			}
		}
		err := tenon.Try(func() {
			for b := range l.Epoch(x) {
				x.Add(b.Tensors[0], b.Tensors[1])
			}
		})
		if err == nil {
			t.Error("the addition of unlike shapes went through")
		}
	})
}

// A scope around the loop keeps nothing.
func TestScopeAround(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := loader(t, table(t, 100))
		before := core.LiveStorages()
		x.Scope(func(x *tenon.Exec) {
			for _, err := range l.Epoch(x) {
				if err != nil {
					t.Fatal(err)
				}
				if n := core.LiveStorages() - before; n > 4 {
					t.Fatalf("%d storages live", n)
				}
			}
		})
	})
}

// fieldless is a data set whose samples have no fields.
type fieldless struct{}

func (fieldless) Len() int                 { return 1 }
func (fieldless) Fields() []data.Field     { return nil }
func (fieldless) Read(int, [][]byte) error { return nil }

func TestMisuse(t *testing.T) {
	_, noColumns := data.NewTable()
	_, uneven := data.NewTable(data.NewColumn([]int64{1, 2}), data.NewColumn([]int64{1}))
	_, odd := data.NewTable(data.NewColumn([]float32{1, 2, 3}, 2))
	_, negative := data.NewLoader(table(t, 1), data.LoaderOpt{Workers: -1})
	_, empty := data.NewLoader(fieldless{})
	for want, err := range map[string]error{
		"at least one column":          noColumns,
		"column 1 has 1 rows":          uneven,
		"not a whole number of":        odd,
		"-1 workers":                   negative,
		"samples have no fields; give": empty,
	} {
		if fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// tallied counts the samples that were read.
type tallied struct {
	data.Dataset
	read *atomic.Int64
}

func (c tallied) Read(row int, dst [][]byte) error {
	c.read.Add(1)
	return c.Dataset.Read(row, dst)
}

// A loader with a negative Prefetch reads no batch before the loop is at it.
func TestNoPrefetch(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	var read atomic.Int64
	l := loader(t, tallied{table(t, 100), &read}, data.LoaderOpt{BatchSize: 10, Workers: 3, Prefetch: -1})
	var seen int64
	for b, err := range l.Epoch(x) {
		if err != nil {
			t.Fatal(err)
		}
		if seen += int64(len(b.Rows)); read.Load() != seen {
			t.Fatalf("%d samples are read, and the loop is at %d", read.Load(), seen)
		}
	}
	if seen != 100 {
		t.Errorf("%d samples, want 100", seen)
	}
}
