//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"errors"
	"runtime"
	"sync"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// kernelNodeParams is cuda.h's CUDA_KERNEL_NODE_PARAMS_v2, 72 bytes. kern is used only if fn is 0, and ctx only with kern.
type kernelNodeParams struct {
	fn          uintptr
	grid, block [3]uint32
	shared      uint32
	_           uint32
	params      uintptr
	extra       uintptr
	kern, ctx   uintptr
}

// memcpyEnd is one side of a CUDA_MEMCPY3D, 88 bytes.
type memcpyEnd struct {
	x, y, z, lod  uintptr
	memoryType    uint32
	_             uint32
	host          uintptr
	device        uintptr
	array         uintptr
	reserved      uintptr
	pitch, height uintptr
}

// memcpyParams is cuda.h's CUDA_MEMCPY3D, 200 bytes.
type memcpyParams struct {
	src, dst             memcpyEnd
	width, height, depth uintptr
}

// memsetParams is cuda.h's CUDA_MEMSET_NODE_PARAMS, 40 bytes. Width is in elements; with a single row the pitch does not matter.
type memsetParams struct {
	dst, pitch         uintptr
	value, elementSize uint32
	width, height      uintptr
}

// nodeParams is heap memory from which the driver reads a node's parameters.
type nodeParams struct {
	kernel kernelNodeParams
	memcpy memcpyParams
	memset memsetParams
}

// launch, copying and filling set the parameters of a node of their kind and return their address.
func (p *nodeParams) launch(l *driver.Launch) uintptr {
	p.kernel = kernelNodeParams{fn: uintptr(l.Func), grid: l.Grid, block: l.Block, shared: l.Shared, extra: extraOf(l)}
	return dl.Address(unsafe.Pointer(&p.kernel))
}

func (p *nodeParams) copying(dst, src driver.Ptr, bytes uint64) uintptr {
	const onDevice = 2 // CU_MEMORYTYPE_DEVICE
	row := memcpyEnd{memoryType: onDevice, pitch: uintptr(bytes), height: 1}
	p.memcpy = memcpyParams{src: row, dst: row, width: uintptr(bytes), height: 1, depth: 1}
	p.memcpy.src.device, p.memcpy.dst.device = uintptr(src), uintptr(dst)
	return dl.Address(unsafe.Pointer(&p.memcpy))
}

func (p *nodeParams) filling(dst driver.Ptr, v uint32, width int, count uint64) uintptr {
	p.memset = memsetParams{dst: uintptr(dst), value: v & (1<<(8*width) - 1), elementSize: uint32(width), width: uintptr(count), height: 1}
	return dl.Address(unsafe.Pointer(&p.memset))
}

var nodeParamsPool = sync.Pool{New: func() any { return new(nodeParams) }}

// CaptureNode returns the node of the latest work on s: the only node that its next work would depend on, if there is just one.
func (d *Device) CaptureNode(s driver.Stream) (driver.Node, error) {
	const call = "CaptureNode"
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	*w = words{}
	if err := d.do(call, procStreamGetCaptureInfo, uintptr(s), w.at(0), w.at(1), 0, w.at(2), w.at(3)); err != nil {
		return 0, err
	}
	switch status := driver.CaptureStatus(int32(w[0])); {
	case status == driver.CaptureNone:
		return 0, &driver.Error{Call: call, Code: driver.IllegalState, Detail: "the stream is not being captured"}
	case status == driver.CaptureInvalidated:
		return 0, &driver.Error{Call: call, Code: driver.StreamCaptureInvalidated}
	case w[3] != 1 || w[2] == 0:
		return 0, &driver.Error{Call: call, Code: driver.IllegalState, Detail: "the stream has no work yet, or has waited since"}
	}
	// The list belongs to the driver, until the next call for the stream.
	return driver.Node(*(*uintptr)(dl.Pointer(uintptr(w[2])))), nil
}

// noNode is the error for a zero node, which the driver would dereference.
func noNode(call string) error {
	return &driver.Error{Call: call, Code: driver.InvalidValue, Detail: "the node is zero; it must be one that CaptureNode or " +
		"GraphChain returned"}
}

// GraphSetLaunch makes later launches of e run l in node n. The driver copies the arguments.
func (d *Device) GraphSetLaunch(t driver.Thread, e driver.GraphExec, n driver.Node, l *driver.Launch) error {
	const call = "GraphSetLaunch"
	if _, err := d.token(call, t); err != nil {
		return err
	}
	if n == 0 {
		return noNode(call)
	}
	p := nodeParamsPool.Get().(*nodeParams)
	defer nodeParamsPool.Put(p)
	err := d.do(call, procGraphExecSetKernel, uintptr(e), uintptr(n), p.launch(l))
	runtime.KeepAlive(l)
	return err
}

// GraphSetCopy makes later launches of e copy from src to dst in node n.
func (d *Device) GraphSetCopy(t driver.Thread, e driver.GraphExec, n driver.Node, dst, src driver.Ptr, bytes uint64) error {
	const call = "GraphSetCopy"
	if _, err := d.token(call, t); err != nil {
		return err
	}
	switch {
	case n == 0:
		return noNode(call)
	case bytes == 0:
		return &driver.Error{Call: call, Code: driver.InvalidValue, Detail: "a node copies at least one byte"}
	}
	p := nodeParamsPool.Get().(*nodeParams)
	defer nodeParamsPool.Put(p)
	return d.do(call, procGraphExecSetMemcpy, uintptr(e), uintptr(n), p.copying(dst, src, bytes), d.ctx)
}

// GraphSetMemset makes later launches of e fill count elements at dst in node n.
func (d *Device) GraphSetMemset(t driver.Thread, e driver.GraphExec, n driver.Node, dst driver.Ptr, v uint32, width int,
	count uint64) error {
	const call = "GraphSetMemset"
	if _, err := d.token(call, t); err != nil {
		return err
	}
	switch {
	case n == 0:
		return noNode(call)
	case width != 1 && width != 2 && width != 4:
		return badWidth(call, width)
	case count == 0:
		return &driver.Error{Call: call, Code: driver.InvalidValue, Detail: "a node fills at least one element"}
	}
	p := nodeParamsPool.Get().(*nodeParams)
	defer nodeParamsPool.Put(p)
	return d.do(call, procGraphExecSetMemset, uintptr(e), uintptr(n), p.filling(dst, v, width, count), d.ctx)
}

// GraphSetEvent makes later launches of e record ev in node n.
func (d *Device) GraphSetEvent(t driver.Thread, e driver.GraphExec, n driver.Node, ev driver.Event) error {
	const call = "GraphSetEvent"
	if _, err := d.token(call, t); err != nil {
		return err
	}
	if n == 0 {
		return noNode(call)
	}
	return d.do(call, procGraphExecSetEvent, uintptr(e), uintptr(n), uintptr(ev))
}

// GraphChain makes a graph of work, each piece after the previous one.
func (d *Device) GraphChain(t driver.Thread, work []driver.ChainWork) (driver.Graph, []driver.Node, error) {
	const call = "GraphChain"
	th, err := d.token(call, t)
	if err != nil {
		return 0, nil, err
	}
	if err := d.do(call, procGraphCreate, th.out.at(0), 0); err != nil {
		return 0, nil, err
	}
	g := uintptr(th.out[0])
	d.hold(heldGraph, g)
	nodes := make([]driver.Node, len(work))
	for i := range work {
		if err := d.append(th, g, min(i, 1), &work[i]); err != nil {
			return 0, nil, errors.Join(err, d.release(call, heldGraph, g, procGraphDestroy))
		}
		nodes[i] = driver.Node(th.out[0])
		th.out[1] = th.out[0]
	}
	return driver.Graph(g), nodes, nil
}

// append adds w to graph g and writes its node to word 0 of th. The node depends on after (0 or 1) nodes; the one is in word 1 of th.
func (d *Device) append(th *thread, g uintptr, after int, w *driver.ChainWork) error {
	const call = "GraphChain"
	p := nodeParamsPool.Get().(*nodeParams)
	defer nodeParamsPool.Put(p)
	node, deps, count := th.out.at(0), th.out.at(1), uintptr(after)
	switch {
	case w.Launch != nil:
		err := d.do(call, procGraphAddKernel, node, g, deps, count, p.launch(w.Launch))
		runtime.KeepAlive(w.Launch)
		return err
	case w.N > 0 && w.Src != 0:
		return d.do(call, procGraphAddMemcpy, node, g, deps, count, p.copying(w.Dst, w.Src, w.N), d.ctx)
	case w.N > 0:
		return d.do(call, procGraphAddMemset, node, g, deps, count, p.filling(w.Dst, uint32(w.Value), 1, w.N), d.ctx)
	case w.Event == 0:
		return &driver.Error{Call: call, Code: driver.InvalidHandle, Detail: "no such event"}
	}
	return d.do(call, procGraphAddEventRecord, node, g, deps, count, uintptr(w.Event))
}
