package hostsim

import (
	"bytes"
	"fmt"
	"os"
	"sync"

	"tenon.dev/internal/check"
	"tenon.dev/internal/driver"
)

// graph is recorded work.
type graph struct {
	id     uint64 // its capture's id
	nodes  []node
	memory *graphMemory
	gone   bool // the handle was released, and its nodes with it
}

// graphExec is a graph ready to run: its nodes, and the state of its one run, guarded by the machine's mu. Launches are numbered and run in
// that order, one after the other.
type graphExec struct {
	source    *graph
	nodes     []execNode
	changes   changes
	memory    *graphMemory
	callbacks int          // host nodes
	issued    uint64       // launches queued
	done      uint64       // launches complete
	end       int64        // when the last node to run so far is complete
	point     *check.Point // after the last launch, for a checker

	need  []int32 // for each node: how many nodes it still waits for
	at    []int64 // for each node: when it can begin
	ready []int32 // nodes that can run
	left  int     // nodes that have not run
	heard int     // host nodes of this run that have run

	inline sync.Mutex
}

// execNode is one node, the number of nodes it waits for, and the nodes that wait for it.
type execNode struct {
	op   op
	need int32
	next []int32
}

// start begins the run of a launch at device time at.
func (e *graphExec) start(ticket uint64, at int64) {
	e.changes.apply(e.nodes, ticket)
	e.left, e.heard, e.end = len(e.nodes), 0, at
	e.ready = e.ready[:0]
	for i := range e.nodes {
		e.need[i], e.at[i] = e.nodes[i].need, at
		if e.need[i] == 0 {
			e.ready = append(e.ready, int32(i))
		}
	}
}

// begin removes node n from those that can run.
func (e *graphExec) begin(n int32) {
	for i, r := range e.ready {
		if r == n {
			e.ready = append(e.ready[:i], e.ready[i+1:]...)
			return
		}
	}
}

// finish records that node n is complete at end.
func (e *graphExec) finish(n int32, end int64) {
	e.left--
	e.end = max(e.end, end)
	if e.nodes[n].op.kind == opCallback {
		e.heard++
	}
	for _, k := range e.nodes[n].next {
		e.at[k] = max(e.at[k], end)
		if e.need[k]--; e.need[k] == 0 {
			e.ready = append(e.ready, k)
		}
	}
}

// GraphNodes returns the number of nodes.
func (d *device) GraphNodes(g driver.Graph) (int, error) {
	if err := d.lock("GraphNodes"); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	gr := d.graphs.get(uintptr(g))
	if gr == nil {
		return 0, fail("GraphNodes", driver.InvalidHandle, "")
	}
	return len(gr.nodes), nil
}

// GraphInstantiate makes an executable graph.
func (d *device) GraphInstantiate(t driver.Thread, g driver.Graph) (driver.GraphExec, error) {
	if err := d.lockUnsafe("GraphInstantiate", t); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	gr := d.graphs.get(uintptr(g))
	if gr == nil {
		return 0, fail("GraphInstantiate", driver.InvalidHandle, "")
	}
	n := len(gr.nodes)
	e := &graphExec{source: gr, nodes: make([]execNode, n), memory: gr.memory.retain(), need: make([]int32, n), at: make([]int64, n)}
	room := 0
	for _, node := range gr.nodes {
		room += len(node.op.args)
	}
	args := make([]byte, 0, room) // its own, so that changes may overwrite it
	for i, node := range gr.nodes {
		e.nodes[i].op, e.nodes[i].need = node.op, int32(len(node.deps))
		args = append(args, node.op.args...)
		e.nodes[i].op.args = args[len(args)-len(node.op.args) : len(args) : len(args)]
		for _, k := range node.deps {
			e.nodes[k].next = append(e.nodes[k].next, int32(i))
		}
		if node.op.kind == opCallback {
			e.callbacks++
		}
	}
	return driver.GraphExec(d.execs.add(e)), nil
}

// GraphChain makes a graph of work, each piece after the previous one.
func (d *device) GraphChain(t driver.Thread, work []driver.ChainWork) (driver.Graph, []driver.Node, error) {
	const call = "GraphChain"
	if _, err := d.lockThread(call, t); err != nil {
		return 0, nil, err
	}
	d.m.captureID++
	g := &graph{id: d.m.captureID, nodes: make([]node, len(work))}
	handles := make([]driver.Node, len(work))
	for i := range work {
		o, err := d.chained(call, &work[i])
		if err != nil {
			return 0, nil, err
		}
		o.args = append([]byte(nil), o.args...)
		g.nodes[i].op = o
		if i > 0 {
			g.nodes[i].deps = []int32{int32(i - 1)}
		}
		handles[i] = nodeHandle(g.id, int32(i))
	}
	defer d.m.mu.Unlock()
	return driver.Graph(d.graphs.add(g)), handles, nil
}

// chained returns a piece of a chain as an operation. mu is held, and unlocked on error.
func (d *device) chained(call string, w *driver.ChainWork) (op, error) {
	switch {
	case w.Launch != nil:
		return d.kernel(call, w.Launch)
	case w.N > 0 && w.Src != 0:
		return d.moving(call, w.Dst, w.Src, w.N)
	case w.N > 0:
		return d.filling(call, w.Dst, uint32(w.Value), 1, w.N)
	}
	return d.recording(call, w.Event)
}

// recording returns the record of an event as an operation of a graph. mu is held, and unlocked on error.
func (d *device) recording(call string, e driver.Event) (op, error) {
	ev := d.m.events.get(uintptr(e))
	if ev == nil || ev.dev != d {
		return op{}, d.refuse(call, driver.InvalidHandle, "no such event")
	}
	return op{kind: opRecord, event: ev}, nil
}

// GraphLaunch queues one run of e on s.
func (d *device) GraphLaunch(e driver.GraphExec, s driver.Stream) error {
	const call = "GraphLaunch"
	st, err := d.admit(call, s)
	if err != nil {
		return err
	}
	x := d.execs.get(uintptr(e))
	if x == nil {
		return d.refuse(call, driver.InvalidHandle, "no such executable graph")
	}
	if st.cap != nil {
		st.cap.invalid = true
		return d.refuse(call, driver.StreamCaptureUnsupported, "a graph launch cannot be captured")
	}
	o := op{kind: opGraph, exec: x}
	if !d.m.inline {
		o.ticket = x.issued
		x.issued++
		d.m.expect(x.callbacks)
	}
	return d.submit(call, st, &o)
}

// GraphDestroy releases the handle.
func (d *device) GraphDestroy(t driver.Thread, g driver.Graph) error {
	if d.lost() {
		return nil
	}
	if _, err := d.lockThread("GraphDestroy", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	gr := d.graphs.remove(uintptr(g))
	if gr == nil {
		return fail("GraphDestroy", driver.InvalidHandle, "")
	}
	gr.gone = true
	gr.memory.release()
	return nil
}

// GraphExecDestroy releases the handle; queued launches run.
func (d *device) GraphExecDestroy(t driver.Thread, e driver.GraphExec) error {
	if d.lost() {
		return nil
	}
	if err := d.lockUnsafe("GraphExecDestroy", t); err != nil {
		return err
	}
	defer d.m.mu.Unlock()
	x := d.execs.remove(uintptr(e))
	if x == nil {
		return fail("GraphExecDestroy", driver.InvalidHandle, "")
	}
	x.memory.release()
	return nil
}

// GraphDot writes the graph in DOT form to path.
func (d *device) GraphDot(t driver.Thread, g driver.Graph, path string) error {
	const call = "GraphDot"
	if _, err := d.lockThread(call, t); err != nil {
		return err
	}
	gr := d.graphs.get(uintptr(g))
	d.m.mu.Unlock()
	if gr == nil {
		return fail(call, driver.InvalidHandle, "")
	}
	var b bytes.Buffer
	b.WriteString("digraph graph_0 {\n")
	writeDot(&b, gr.nodes)
	b.WriteString("}\n")
	if err := os.WriteFile(path, b.Bytes(), 0o644); err != nil {
		return fail(call, driver.OperatingSystem, err.Error())
	}
	return nil
}

// writeDot writes nodes and their edges.
func writeDot(b *bytes.Buffer, nodes []node) {
	for i, n := range nodes {
		label := opNames[n.op.kind]
		switch n.op.kind {
		case opKernel:
			label = fmt.Sprintf("kernel %s grid %v block %v", n.op.fn.name, n.op.grid, n.op.block)
		case opCopyDtoD, opCopyHtoD, opCopyDtoH, opMemset:
			label = fmt.Sprintf("%s %d", label, n.op.n)
		}
		fmt.Fprintf(b, "\tn%d [label=%q];\n", i, label)
		for _, d := range n.deps {
			fmt.Fprintf(b, "\tn%d -> n%d;\n", d, i)
		}
	}
}
