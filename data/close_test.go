package data_test

import (
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/fault"
)

// counted is a data set of large samples that counts the reads.
type counted struct{ reads atomic.Int64 }

func (c *counted) Len() int { return 1 << 20 }

func (c *counted) Fields() []data.Field {
	return []data.Field{{DType: tenon.Uint8, Shape: []int{1 << 12}}}
}

func (c *counted) Read(i int, dst [][]byte) error {
	for j := range dst[0] {
		dst[0][j] = byte(i)
	}
	c.reads.Add(1)
	return nil
}

// TestCloseOfDeviceInEpoch closes the device under a loader whose workers fill page-locked memory: the epoch ends with an error that says
// once that the device was closed.
func TestCloseOfDeviceInEpoch(t *testing.T) {
	for range 10 {
		x, err := tenon.Open(tenon.Sim(64 << 20))
		if err != nil {
			t.Fatal(err)
		}
		y, err := x.Fork()
		if err != nil {
			t.Fatal(err)
		}
		ds := &counted{}
		l, err := data.NewLoader(ds, data.LoaderOpt{BatchSize: 16, Workers: 3, Prefetch: 4})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error)
		go func() {
			var last error
			for b, err := range l.Epoch(y) {
				if last = err; err == nil && b.Tensors[0].Size(0) != 16 {
					t.Error("a batch has too few samples")
				}
			}
			ended <- last
		}()
		for ds.reads.Load() < 300 {
			runtime.Gosched()
		}
		if err := x.Close(); err != nil {
			t.Error(err)
		}
		err = <-ended
		if fault.KindOf(err) != fault.Closed || strings.Count(err.Error(), "was closed") != 1 || strings.Contains(err.Error(), "driver") {
			t.Fatalf("the epoch ended with %v", err)
		}
	}
}
