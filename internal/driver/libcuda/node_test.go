//go:build !tenon_sim && linux

package libcuda

import (
	"bytes"
	"encoding/binary"
	"testing"

	"tenon.dev/internal/driver"
)

// A stream's node is the only one that its next work depends on.
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
	// First of the source and, 88 bytes on, of the destination: memory type, device, pitch, height.
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

// Arguments that the driver would dereference or silently accept are refused, and what the driver refuses is an error of the call.
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

// A chain is a graph whose nodes are added one after the other, with parameters at the offsets of cuda.h.
func TestChain(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	l := &driver.Launch{Func: 0xf00, Grid: [3]uint32{1, 2, 3}, Block: [3]uint32{4, 5, 6}, Shared: 7,
		Args: []byte("parameters"), Waits: true}
	word := func(at int) uint64 { return binary.NativeEndian.Uint64(f.node[at:]) }
	half := func(at int) uint32 { return binary.NativeEndian.Uint32(f.node[at:]) }
	check := map[proc]func(){
		procGraphAddKernel: func() {
			if word(0) != 0xf00 || half(8) != 1 || half(28) != 6 || half(32) != 7 || !bytes.Equal(f.params, l.Args) {
				t.Errorf("kernel parameters %x, arguments %q", f.node, f.params)
			}
		},
		procGraphAddMemcpy: func() {
			if a := f.args[procGraphAddMemcpy]; a[5] != fakeContext || half(32) != 2 || word(48) != 0x500 || half(120) != 2 ||
				word(136) != 0xd00 || word(176) != 99 {
				t.Errorf("copy in context %#x, parameters %x", a[5], f.node)
			}
		},
		procGraphAddMemset: func() {
			if a := f.args[procGraphAddMemset]; a[5] != fakeContext || word(0) != 0xd00 || half(16) != 8 || half(20) != 1 ||
				word(24) != 99 || word(32) != 1 {
				t.Errorf("fill in context %#x, parameters %x", a[5], f.node)
			}
		},
		procGraphAddEventRecord: func() {
			if a := f.args[procGraphAddEventRecord]; a[4] != 0xe00 {
				t.Errorf("event %#x", a[4])
			}
		},
	}
	pieces := map[proc]driver.ChainWork{procGraphAddKernel: {Launch: l}, procGraphAddMemcpy: {Dst: 0xd00, Src: 0x500, N: 99},
		procGraphAddMemset: {Dst: 0xd00, N: 99, Value: 8}, procGraphAddEventRecord: {Event: 0xe00}}
	for _, p := range []proc{procGraphAddKernel, procGraphAddMemcpy, procGraphAddMemset, procGraphAddEventRecord} {
		f.nodesAdded = nil
		work := []driver.ChainWork{{Event: 0xe01}, pieces[p]}
		g, nodes, err := d.GraphChain(th, work)
		if err != nil || len(nodes) != 2 {
			t.Fatalf("%s: %v, %v", procTable[p].name, nodes, err)
		}
		check[p]()
		first, second := f.nodesAdded[0], f.nodesAdded[1]
		if first != (addedNode{procGraphAddEventRecord, uintptr(g), uintptr(nodes[0]), 0}) ||
			second != (addedNode{p, uintptr(g), uintptr(nodes[1]), uintptr(nodes[0])}) {
			t.Errorf("%s: the nodes %v of graph %#x were added as %+v", procTable[p].name, nodes, g, f.nodesAdded)
		}
		if err := d.GraphDestroy(th, g); err != nil {
			t.Error(err)
		}
	}
	if len(f.live) != 0 {
		t.Errorf("%d handles live", len(f.live))
	}
	if err := d.GraphSetEvent(th, 20, 30, 40); err != nil {
		t.Fatal(err)
	}
	if a := f.args[procGraphExecSetEvent]; a[0] != 20 || a[1] != 30 || a[2] != 40 {
		t.Errorf("arguments %v", a[:3])
	}
	wantError(t, d.GraphSetEvent(th, 20, 0, 40), "GraphSetEvent", driver.InvalidValue, "GraphChain")
}

// A chain that fails leaves no graph.
func TestChainErrors(t *testing.T) {
	f := newFake(t)
	d := f.open()
	defer d.Close()
	th := d.Enter()
	defer th.Leave()
	work := []driver.ChainWork{{Event: 1}, {Launch: &driver.Launch{Func: 1}}, {Dst: 1, Src: 2, N: 3}, {Dst: 1, N: 3}}
	for _, p := range []proc{procGraphCreate, procGraphAddEventRecord, procGraphAddKernel, procGraphAddMemcpy, procGraphAddMemset} {
		f.fail[p] = driver.OutOfMemory
		g, nodes, err := d.GraphChain(th, work)
		wantError(t, err, "GraphChain", driver.OutOfMemory)
		if g != 0 || nodes != nil || len(f.live) != 0 {
			t.Errorf("%s failed and left graph %#x, %d nodes, %d handles", procTable[p].name, g, len(nodes), len(f.live))
		}
		f.fail[p] = driver.Success
	}
	_, _, err := d.GraphChain(th, []driver.ChainWork{{}})
	wantError(t, err, "GraphChain", driver.InvalidHandle, "event")
}
