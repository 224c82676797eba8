package optim_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/cost"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// trained returns an optimizer on the processor for a fuzz target to load into, and a valid file of it.
func trained(f *testing.F) (x *tenon.Exec, o optim.Optimizer, good string) {
	x, err := tenon.Open(tenon.CPU())
	ok(f, err)
	tr := newTraining(f, x, "AdamW AMSGrad")
	f.Cleanup(tr.close)
	tr.gradient(x, 0)
	ok(f, tr.o.Step(x))
	good = filepath.Join(f.TempDir(), "good")
	ok(f, optim.SaveFile(x, tr.o, good))
	return x, tr.o, good
}

// loaded calls load, which may fail but must then change nothing, and restores the valid file's state. The load may use memory in
// proportion to the size of its input.
func loaded(t *testing.T, x *tenon.Exec, o optim.Optimizer, good string, size int, load func() error) {
	ok(t, optim.LoadFile(x, o, good))
	rate, before := o.LR(0), core.LiveStorages()
	x.Scope(func(x *tenon.Exec) {
		cost.Within(t, 2<<20+200*size, func() {
			if err := load(); err == nil {
				ok(t, optim.LoadFile(x, o, good))
			} else if k := fault.KindOf(err); k != fault.Invalid && k != fault.Unsupported && k != fault.OutOfMemory {
				t.Errorf("kind %v: %v", k, err)
			}
		})
	})
	if n := core.LiveStorages() - before; n > 0 || o.LR(0) != rate {
		t.Errorf("%d storages more are there, and the learning rate %v became %v", n, rate, o.LR(0))
	}
}

// FuzzLoadFile loads any header and data in the safetensors format as an optimizer's file.
func FuzzLoadFile(f *testing.F) {
	x, o, good := trained(f)
	b, err := os.ReadFile(good)
	ok(f, err)
	n := 8 + int(binary.LittleEndian.Uint64(b))
	f.Add(string(b[8:n]), b[n:])
	f.Add(`{"__metadata__":{"optimizer":"AdamW","param_groups":"[{\"params\":[0,1,2],\"lr\":1e400,\"betas\":[2,-1]}]"}}`, []byte{})
	name := filepath.Join(f.TempDir(), "fuzzed")
	f.Fuzz(func(t *testing.T, header string, data []byte) {
		file := append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
		ok(t, os.WriteFile(name, file, 0o666))
		loaded(t, x, o, good, len(file), func() error { return optim.LoadFile(x, o, name) })
	})
}

// FuzzLoadStateDict loads any pickle in a PyTorch file with the tensors of a valid one.
func FuzzLoadStateDict(f *testing.F) {
	x, o, good := trained(f)
	var whole bytes.Buffer
	x.Scope(func(x *tenon.Exec) {
		d, err := optim.StateDict(x, o)
		ok(f, err, torchfile.Write(x, &whole, d))
	})
	repickled(f, whole.Bytes(), func(p []byte) []byte { f.Add(p); return p })
	f.Fuzz(func(t *testing.T, pickle []byte) {
		file := repickled(t, whole.Bytes(), func([]byte) []byte { return pickle })
		limits := torchfile.Limits{Memory: int64(1<<18 + 128*len(pickle)), Values: 20_000, Tensors: 1 << 20, Expanded: 1 << 19}
		from, err := limits.New(bytes.NewReader(file), int64(len(file)))
		if err != nil {
			return
		}
		loaded(t, x, o, good, len(file), func() error { return optim.LoadStateDict(x, o, from) })
	})
}
