//go:build !tenon_sim && linux

package libcuda

import (
	"bytes"
	"encoding/binary"
	"testing"

	"tenon.dev/internal/driver"
)

// A stream's node is the only one that its next work would come after.
func TestCaptureNode(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	f.nodes = []uintptr{0x70}
	if n, err := d.CaptureNode(5); n != 0x70 || err != nil || f.args[procStreamGetCaptureInfo][0] != 5 {
		t.Errorf("CaptureNode = %#x, %v", n, err)
	}
	for _, nodes := range [][]uintptr{nil, {0x70, 0x71}} {
		f.nodes = nodes
		_, err := d.CaptureNode(5)
		wantError(t, err, "CaptureNode", driver.IllegalState, "no work yet")
	}
	f.nodes = []uintptr{0x70}
	f.status = driver.CaptureNone
	_, err := d.CaptureNode(5)
	wantError(t, err, "CaptureNode", driver.IllegalState, "not being captured")
	f.status = driver.CaptureInvalidated
	_, err = d.CaptureNode(5)
	wantError(t, err, "CaptureNode", driver.StreamCaptureInvalidated)
	f.fail[procStreamGetCaptureInfo] = driver.StreamCaptureImplicit
	_, err = d.CaptureNode(0)
	wantError(t, err, "CaptureNode", driver.StreamCaptureImplicit)
}

// The driver reads a node's parameters at the offsets that cuda.h gives them.
func TestNodeParams(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(f.node[at:]) }
	half := func(at int) uint32 { return binary.NativeEndian.Uint32(f.node[at:]) }
	l := &driver.Launch{Func: 0xf00, Stream: 12, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, Shared: 7, Args: []byte("parameters")}
	if err := d.GraphSetLaunch(th, 20, 30, l); err != nil {
		t.Fatal(err)
	}
	if a := f.args[procGraphExecSetKernel]; a[0] != 20 || a[1] != 30 {
		t.Errorf("arguments %v", a[:2])
	}
	for i, want := range []uint32{1, 2, 3, 4, 5, 6, 7} { // gridDimX to sharedMemBytes
		if got := half(8 + 4*i); got != want {
			t.Errorf("field %d is %d", i, got)
		}
	}
	if word(0) != 0xf00 || word(40) != 0 || word(48) == 0 || word(56) != 0 || word(64) != 0 { // func, kernelParams, extra, kern, ctx
		t.Errorf("parameters %x", f.node)
	}
	if !bytes.Equal(f.params, l.Args) {
		t.Errorf("the driver read the arguments %q", f.params)
	}
	l.Args = nil
	if err := d.GraphSetLaunch(th, 20, 30, l); err != nil || word(48) != 0 {
		t.Errorf("no arguments: %v, extra %#x", err, word(48))
	}

	if err := d.GraphSetCopy(th, 20, 30, 0xd00, 0x500, 99); err != nil {
		t.Fatal(err)
	}
	if a := f.args[procGraphExecSetMemcpy]; a[0] != 20 || a[1] != 30 || a[3] != fakeContext {
		t.Errorf("arguments %v", a[:4])
	}
	// Of the source, and 88 bytes on of the destination: memory type, device, pitch, height.
	for _, c := range []struct {
		at   int
		want uint64
	}{{32, 2}, {48, 0x500}, {72, 99}, {80, 1}, {120, 2}, {136, 0xd00}, {160, 99}, {168, 1}, {176, 99}, {184, 1}, {192, 1}} {
		if word(c.at) != c.want {
			t.Errorf("at %d is %#x, want %#x", c.at, word(c.at), c.want)
		}
		clear(f.node[c.at : c.at+8])
	}
	if !bytes.Equal(f.node, make([]byte, 200)) {
		t.Errorf("other fields are set: %x", f.node)
	}

	for width, value := range map[int]uint32{1: 4, 2: 0x304, 4: 0x1020304} {
		if err := d.GraphSetMemset(th, 20, 30, 0xd00, 0x1020304, width, 99); err != nil {
			t.Fatal(err)
		}
		if a := f.args[procGraphExecSetMemset]; a[0] != 20 || a[1] != 30 || a[3] != fakeContext {
			t.Errorf("arguments %v", a[:4])
		}
		// dst, pitch, value, elementSize, width, height
		if word(0) != 0xd00 || word(8) != 0 || half(16) != value || half(20) != uint32(width) || word(24) != 99 || word(32) != 1 {
			t.Errorf("width %d: parameters %x", width, f.node)
		}
	}
}

// What the driver would follow or silently take is refused, and what it refuses is an error of the call.
func TestNodeErrors(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	l := &driver.Launch{Func: 1}
	wantError(t, d.GraphSetLaunch(th, 1, 0, l), "GraphSetLaunch", driver.InvalidValue, "CaptureNode")
	wantError(t, d.GraphSetCopy(th, 1, 0, 1, 2, 3), "GraphSetCopy", driver.InvalidValue, "CaptureNode")
	wantError(t, d.GraphSetCopy(th, 1, 2, 1, 2, 0), "GraphSetCopy", driver.InvalidValue, "at least one")
	wantError(t, d.GraphSetMemset(th, 1, 0, 1, 2, 4, 3), "GraphSetMemset", driver.InvalidValue, "CaptureNode")
	wantError(t, d.GraphSetMemset(th, 1, 2, 1, 2, 4, 0), "GraphSetMemset", driver.InvalidValue, "at least one")
	wantError(t, d.GraphSetMemset(th, 1, 2, 1, 2, 3, 1), "GraphSetMemset", driver.InvalidValue, "1, 2 or 4")
	if f.count[procGraphExecSetKernel]+f.count[procGraphExecSetMemcpy]+f.count[procGraphExecSetMemset] != 0 {
		t.Error("a call that is refused reached the driver")
	}
	f.fail[procGraphExecSetKernel], f.fail[procGraphExecSetMemcpy] = driver.InvalidValue, driver.NotSupported
	wantError(t, d.GraphSetLaunch(th, 1, 2, l), "GraphSetLaunch", driver.InvalidValue)
	wantError(t, d.GraphSetCopy(th, 1, 2, 1, 2, 3), "GraphSetCopy", driver.NotSupported)
}
