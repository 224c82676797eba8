package cuda_test

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/data"
	"tenon.dev/fault"
	"tenon.dev/nn"
	"tenon.dev/safetensors"
	"tenon.dev/torchfile"
)

// failure returns the error of a call that also returns something else.
func failure[T any](_ T, err error) error { return err }

// TestErrorsAreLocated checks that errors of the packages that make no tensors name the call and its line, as errors of operations do.
func TestErrorsAreLocated(t *testing.T) {
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	d := x.Device()
	other, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	m := nn.NewLinear(x, 2, 2)
	none := filepath.Join(t.TempDir(), "none")
	table, err := data.NewTable(data.NewColumn([]float32{1, 2}))
	if err != nil {
		t.Fatal(err)
	}
	for op, run := range map[string]func() error{
		"Malloc":               func() error { return failure(d.Malloc(1 << 40)) },
		"SetAllocatorSettings": func() error { return d.SetAllocatorSettings("nothing:1") },
		"SetMemoryFraction":    func() error { return d.SetMemoryFraction(7) },
		"Profile":              func() error { return failure(d.Profile(cuda.ProfileOpt{Bandwidth: -1})) },
		"Elapsed": func() error {
			e := d.NewEvent(cuda.EventOpt{Timing: true})
			return failure(e.Elapsed(e))
		},
		"SnapshotOf":            func() error { return failure(cuda.SnapshotOf()) },
		"ReadSnapshotFile":      func() error { return failure(cuda.ReadSnapshotFile(none)) },
		"torchfile.Open":        func() error { return failure(torchfile.Open(none)) },
		"torchfile.Write":       func() error { return torchfile.Write(x, nil, 1) },
		"safetensors.Open":      func() error { return failure(safetensors.Open(none)) },
		"safetensors.New":       func() error { return failure(safetensors.New(strings.NewReader("abc"), 3)) },
		"safetensors.File.Read": func() error { return failure((*safetensors.File)(nil).Read("a")) },
		"data.NewTable":         func() error { return failure(data.NewTable(data.NewColumn([]float32{1, 2, 3}, 2))) },
		"data.NewLoader":        func() error { return failure(data.NewLoader(table, data.LoaderOpt{BatchSize: -1})) },
		"data.Loader.SetState":  func() error { return (*data.Loader)(nil).SetState(data.LoaderState{}) },
		"LoadFile":              func() error { return nn.LoadFile(x, m, none) },
		"Load":                  func() error { return nn.Load(x, m, nil) },
		"ToDType":               func() error { return nn.ToDType(x, m, tenon.Int64) },
	} {
		var e *fault.Error
		if err := run(); !errors.As(err, &e) || e.Op != op || filepath.Base(e.File) != "located_test.go" || e.Line == 0 {
			t.Errorf("%s: the error is %v", op, err)
		}
	}
	if err := failure(data.NewTable(data.NewColumn([]float32{1, 2, 3}, 2))); !strings.Contains(err.Error(),
		"column 0 has 3 elements, which are not a whole number of samples of shape [2]; give a multiple of 2") {
		t.Error(err)
	}
	if err := failure(d.Malloc(1 << 40)); !strings.Contains(err.Error(), "1099511627776 bytes could not be taken") {
		t.Error(err)
	}
}
