package hostsim

import "tenon.dev/internal/driver"

// nodeHandle is the handle of node i of the graph that a capture records: the low 32 bits are i+1, the high 32 the capture's id.
func nodeHandle(capture uint64, i int32) driver.Node {
	return driver.Node(capture<<32 | uint64(uint32(i)+1))
}

// change is a node's new operation from one launch on.
type change struct {
	op     op
	node   int32
	ticket uint64 // the first launch that it applies to
}

// changes are the changes of an executable that queued launches must not see yet, oldest first, guarded by the machine's mu. Between the
// slice's length and capacity lie applied ones, whose memory for arguments is reused.
type changes []change

// add makes o the operation of node i from launch ticket on.
func (c *changes) add(i int32, o *op, ticket uint64) {
	n := len(*c)
	if n == cap(*c) {
		*c = append(*c, change{})
	} else {
		*c = (*c)[:n+1]
	}
	k := &(*c)[n]
	k.node, k.ticket = i, ticket
	k.op.become(o)
}

// apply makes the changes for launches up to ticket. No run is in progress.
func (c *changes) apply(nodes []execNode, ticket uint64) {
	all := *c
	n := 0
	for ; n < len(all) && all[n].ticket <= ticket; n++ {
		k := &all[n]
		// The change takes over the node's old memory for arguments.
		old := &nodes[k.node].op
		k.op.site = old.site
		*old, k.op = k.op, op{args: old.args}
	}
	if n == 0 {
		return
	}
	for i := n; i < len(all); i++ {
		all[i-n], all[i] = all[i], all[i-n]
	}
	*c = all[:len(all)-n]
}

// become copies p to o, including its arguments.
func (o *op) become(p *op) {
	args := append(o.args[:0], p.args...)
	*o = *p
	o.args = args
}

// nodeOf returns the executable and the index of its node for a call that changes a node of the given kind. mu is held on success.
func (d *device) nodeOf(call string, t driver.Thread, e driver.GraphExec, n driver.Node, kind opKind) (*graphExec, int32, error) {
	if err := d.lockUnsafe(call, t); err != nil {
		return nil, 0, err
	}
	x := d.execs.get(uintptr(e))
	if x == nil {
		return nil, 0, d.refuse(call, driver.InvalidHandle, "no such executable graph")
	}
	i := int64(uint32(n)) - 1
	switch {
	case uint64(n)>>32 != x.source.id || i < 0 || i >= int64(len(x.nodes)):
		return nil, 0, d.refuse(call, driver.InvalidValue, "the node does not belong to the graph that the executable was made from")
	case x.source.gone:
		return nil, 0, d.refuse(call, driver.InvalidValue, "the node's graph was destroyed")
	case x.source.nodes[i].op.kind != kind:
		return nil, 0, d.refuse(call, driver.InvalidValue, "the node is not a "+opNames[kind])
	}
	return x, int32(i), nil
}

// change makes o the operation of node i of x for launches from now on, and unlocks mu.
func (d *device) change(x *graphExec, i int32, o *op) {
	defer d.m.mu.Unlock()
	x.changes.add(i, o, x.issued)
	// On an inline device a run may be in progress, which has no number. It holds the lock, and the next run makes the change.
	if d.m.inline && x.inline.TryLock() {
		defer x.inline.Unlock()
		x.changes.apply(x.nodes, x.issued)
	} else if !d.m.inline && x.issued == x.done {
		x.changes.apply(x.nodes, x.issued)
	}
}

// GraphSetLaunch makes later launches of e run l in node n.
func (d *device) GraphSetLaunch(t driver.Thread, e driver.GraphExec, n driver.Node, l *driver.Launch) error {
	const call = "GraphSetLaunch"
	x, i, err := d.nodeOf(call, t, e, n, opKernel)
	if err != nil {
		return err
	}
	o, err := d.kernel(call, l)
	if err != nil {
		return err
	}
	d.change(x, i, &o)
	return nil
}

// GraphSetCopy makes later launches of e copy from src to dst in node n.
func (d *device) GraphSetCopy(t driver.Thread, e driver.GraphExec, n driver.Node, dst, src driver.Ptr, bytes uint64) error {
	const call = "GraphSetCopy"
	x, i, err := d.nodeOf(call, t, e, n, opCopyDtoD)
	if err != nil {
		return err
	}
	if bytes == 0 {
		return d.refuse(call, driver.InvalidValue, "a node copies at least one byte")
	}
	o, err := d.moving(call, dst, src, bytes)
	if err != nil {
		return err
	}
	d.change(x, i, &o)
	return nil
}

// GraphSetEvent makes later launches of e record ev in node n.
func (d *device) GraphSetEvent(t driver.Thread, e driver.GraphExec, n driver.Node, ev driver.Event) error {
	const call = "GraphSetEvent"
	x, i, err := d.nodeOf(call, t, e, n, opRecord)
	if err != nil {
		return err
	}
	o, err := d.recording(call, ev)
	if err != nil {
		return err
	}
	d.change(x, i, &o)
	return nil
}

// GraphSetMemset makes later launches of e fill count elements at dst in node n.
func (d *device) GraphSetMemset(t driver.Thread, e driver.GraphExec, n driver.Node, dst driver.Ptr, v uint32, width int,
	count uint64) error {
	const call = "GraphSetMemset"
	x, i, err := d.nodeOf(call, t, e, n, opMemset)
	if err != nil {
		return err
	}
	if count == 0 {
		return d.refuse(call, driver.InvalidValue, "a node fills at least one element")
	}
	o, err := d.filling(call, dst, v, width, count)
	if err != nil {
		return err
	}
	d.change(x, i, &o)
	return nil
}
