//go:build !tenon_sim && (linux || windows)

package libcuda

import (
	"runtime"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/driver"
)

// CaptureBegin starts a capture on s.
func (d *Device) CaptureBegin(t driver.Thread, s driver.Stream, mode driver.CaptureMode) error {
	if _, err := d.token("CaptureBegin", t); err != nil {
		return err
	}
	return d.do("CaptureBegin", procStreamBeginCapture, uintptr(s), uintptr(mode))
}

// CaptureEnd ends the capture of s and returns its graph.
func (d *Device) CaptureEnd(t driver.Thread, s driver.Stream) (driver.Graph, error) {
	th, err := d.token("CaptureEnd", t)
	if err != nil {
		return 0, err
	}
	if err := d.do("CaptureEnd", procStreamEndCapture, uintptr(s), th.out.at(0)); err != nil {
		return 0, err
	}
	d.hold(heldGraph, uintptr(th.out[0]))
	return driver.Graph(th.out[0]), nil
}

// CaptureInfo returns the state of s and the id of its capture. For StreamLegacy it fails with StreamCaptureImplicit while a blocking
// stream is being captured, and the goroutine must hold a token.
func (d *Device) CaptureInfo(s driver.Stream) (driver.CaptureStatus, uint64, error) {
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	*w = words{}
	if err := d.do("CaptureInfo", procStreamGetCaptureInfo, uintptr(s), w.at(0), w.at(1), 0, 0, 0); err != nil {
		return driver.CaptureNone, 0, err
	}
	status := driver.CaptureStatus(int32(w[0]))
	if status == driver.CaptureNone {
		return status, 0, nil
	}
	return status, w[1], nil
}

// CaptureExchangeMode sets the calling thread's mode and returns the old one.
func (d *Device) CaptureExchangeMode(t driver.Thread, mode driver.CaptureMode) (driver.CaptureMode, error) {
	th, err := d.token("CaptureExchangeMode", t)
	if err != nil {
		return 0, err
	}
	th.out[0] = uint64(mode)
	if err := d.do("CaptureExchangeMode", procExchangeCaptureMode, th.out.at(0)); err != nil {
		return 0, err
	}
	return driver.CaptureMode(int32(th.out[0])), nil
}

// GraphNodes returns the number of nodes of g.
func (d *Device) GraphNodes(g driver.Graph) (int, error) {
	w := wordsPool.Get().(*words)
	defer wordsPool.Put(w)
	if err := d.do("GraphNodes", procGraphGetNodes, uintptr(g), 0, w.at(0)); err != nil {
		return 0, err
	}
	return int(w[0]), nil
}

// GraphInstantiate makes g executable. Memory that allocation nodes of an earlier launch left is freed at the next one.
func (d *Device) GraphInstantiate(t driver.Thread, g driver.Graph) (driver.GraphExec, error) {
	th, err := d.token("GraphInstantiate", t)
	if err != nil {
		return 0, err
	}
	const autoFreeOnLaunch = 1 // CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH
	if err := d.do("GraphInstantiate", procGraphInstantiate, th.out.at(0), uintptr(g), autoFreeOnLaunch); err != nil {
		return 0, err
	}
	d.hold(heldGraphExec, uintptr(th.out[0]))
	return driver.GraphExec(th.out[0]), nil
}

// GraphLaunch queues one run of e on s.
func (d *Device) GraphLaunch(e driver.GraphExec, s driver.Stream) error {
	return d.do("GraphLaunch", procGraphLaunch, uintptr(e), uintptr(s))
}

// GraphDestroy releases g.
func (d *Device) GraphDestroy(t driver.Thread, g driver.Graph) error {
	if _, err := d.token("GraphDestroy", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("GraphDestroy", heldGraph, uintptr(g), procGraphDestroy)
}

// GraphExecDestroy releases e; a run in flight completes.
func (d *Device) GraphExecDestroy(t driver.Thread, e driver.GraphExec) error {
	if _, err := d.token("GraphExecDestroy", t); err != nil && d.lost.Load() == nil {
		return err
	}
	return d.release("GraphExecDestroy", heldGraphExec, uintptr(e), procGraphExecDestroy)
}

// GraphDot writes g to path in DOT form with every node's parameters.
func (d *Device) GraphDot(t driver.Thread, g driver.Graph, path string) error {
	if _, err := d.token("GraphDot", t); err != nil {
		return err
	}
	const verbose = 1 // CU_GRAPH_DEBUG_DOT_FLAGS_VERBOSE
	name := append([]byte(path), 0)
	err := d.do("GraphDot", procGraphDebugDotPrint, uintptr(g), dl.Address(unsafe.Pointer(&name[0])), verbose)
	runtime.KeepAlive(name)
	return err
}
