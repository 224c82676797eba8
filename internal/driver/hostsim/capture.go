package hostsim

import "tenon.dev/internal/driver"

// capture is one capture sequence, guarded by the machine's mu. After its end it lives on in the events that it recorded.
type capture struct {
	dev     *device
	id      uint64
	mode    driver.CaptureMode
	owner   uint64 // the thread that began it
	origin  *stream
	streams []*stream
	nodes   []node
	memory  *graphMemory
	invalid bool
	ended   bool
}

// node is one captured operation and the nodes that it depends on.
type node struct {
	op   op
	deps []int32
}

// add captures o on s.
func (c *capture) add(s *stream, o *op) {
	n := node{op: *o, deps: append([]int32(nil), s.deps...)}
	n.op.args = append([]byte(nil), o.args...)
	c.nodes = append(c.nodes, n)
	s.deps = append(s.deps[:0], int32(len(c.nodes)-1))
}

// drop removes s from the capture.
func (c *capture) drop(s *stream) {
	s.cap, s.deps = nil, nil
	for i, o := range c.streams {
		if o == s {
			c.streams = append(c.streams[:i], c.streams[i+1:]...)
			return
		}
	}
}

// leave ends c and removes its streams from it.
func (m *machine) leave(c *capture) {
	for len(c.streams) > 0 {
		c.drop(c.streams[0])
	}
	c.ended = true
	for i, o := range m.captures {
		if o == c {
			m.captures = append(m.captures[:i], m.captures[i+1:]...)
			return
		}
	}
}

// forbidden returns the code of a potentially unsafe call by t, and invalidates the captures that forbid it: those that t began and, under
// the thread's global mode, those that other threads began in global mode. Relaxed captures forbid nothing.
func (m *machine) forbidden(t *token) driver.Code {
	code := driver.Success
	if t.mode == driver.CaptureRelaxed {
		return code
	}
	for _, c := range m.captures {
		own := c.owner == t.id && c.mode != driver.CaptureRelaxed
		foreign := c.owner != t.id && c.mode == driver.CaptureGlobal && t.mode == driver.CaptureGlobal
		if own || foreign {
			c.invalid = true
			code = driver.StreamCaptureUnsupported
		}
	}
	return code
}

// capturingDevice returns the code of waiting for all of d, and invalidates the captures that forbid it: all captures of the device.
func (m *machine) capturingDevice(d *device) driver.Code {
	code := driver.Success
	for _, c := range m.captures {
		if c.dev == d {
			c.invalid = true
			code = driver.StreamCaptureUnsupported
		}
	}
	return code
}

// implicit reports whether d's legacy stream is unusable because it would wait for a blocking stream that is being captured; spoil
// invalidates those captures.
func (m *machine) implicit(d *device, spoil bool) bool {
	found := false
	for _, c := range m.captures {
		for _, s := range c.streams {
			if s.dev == d && s.blocking {
				c.invalid = c.invalid || spoil
				found = true
			}
		}
	}
	return found
}

// join makes s wait for a captured event, and so join the event's capture.
func (m *machine) join(s *stream, e *event) driver.Code {
	c := e.cap
	switch {
	case c.ended:
		return driver.CapturedEvent
	case s.cap != nil && s.cap.invalid:
		return driver.StreamCaptureInvalidated
	case c.invalid:
		return driver.InvalidValue
	case s.cap == c:
		for _, n := range e.deps {
			s.after(n)
		}
		return driver.Success
	case s.cap != nil:
		c.invalid, s.cap.invalid = true, true
		return driver.StreamCaptureMerge
	case s.legacy:
		c.invalid = true
		return driver.StreamCaptureImplicit
	}
	s.cap, s.deps = c, append([]int32(nil), e.deps...)
	c.streams = append(c.streams, s)
	return driver.Success
}

// after adds node n to the dependencies of the next captured node of s.
func (s *stream) after(n int32) {
	for _, d := range s.deps {
		if d == n {
			return
		}
	}
	s.deps = append(s.deps, n)
}

// CaptureBegin starts a capture on s.
func (d *device) CaptureBegin(t driver.Thread, s driver.Stream, mode driver.CaptureMode) error {
	const call = "CaptureBegin"
	tok, err := d.lockThread(call, t)
	if err != nil {
		return err
	}
	m := d.m
	defer m.mu.Unlock()
	st := d.stream(s)
	switch {
	case st == nil:
		return fail(call, driver.InvalidHandle, "")
	case st.legacy:
		return fail(call, driver.StreamCaptureUnsupported, "the legacy stream cannot be captured")
	case mode < driver.CaptureGlobal || mode > driver.CaptureRelaxed:
		return fail(call, driver.InvalidValue, "no such mode")
	case st.cap != nil:
		return fail(call, driver.IllegalState, "the stream is being captured")
	}
	m.captureID++
	c := &capture{dev: d, id: m.captureID, mode: mode, owner: tok.id, origin: st, streams: []*stream{st}}
	st.cap = c
	m.captures = append(m.captures, c)
	return nil
}

// CaptureEnd ends the capture on s and returns its graph.
func (d *device) CaptureEnd(t driver.Thread, s driver.Stream) (driver.Graph, error) {
	const call = "CaptureEnd"
	tok, err := d.lockThread(call, t)
	if err != nil {
		return 0, err
	}
	m := d.m
	defer m.mu.Unlock()
	st := d.stream(s)
	if st == nil {
		return 0, fail(call, driver.InvalidHandle, "")
	}
	c := st.cap
	switch {
	case c == nil:
		return 0, fail(call, driver.IllegalState, "the stream is not being captured")
	case c.origin != st:
		c.invalid = true
		return 0, fail(call, driver.StreamCaptureUnmatched, "")
	}
	joined := c.joined()
	m.leave(c)
	code := driver.Success
	switch {
	case c.invalid:
		code = driver.StreamCaptureInvalidated
	case c.mode != driver.CaptureRelaxed && c.owner != tok.id:
		code = driver.StreamCaptureWrongThread
	case !joined:
		code = driver.StreamCaptureUnjoined
	}
	if code != driver.Success {
		c.memory.release()
		return 0, fail(call, code, "")
	}
	return driver.Graph(d.graphs.add(&graph{id: c.id, nodes: c.nodes, memory: c.memory})), nil
}

// joined reports whether the origin depends on every captured node.
func (c *capture) joined() bool {
	seen := make([]bool, len(c.nodes))
	todo := append([]int32(nil), c.origin.deps...)
	count := 0
	for len(todo) > 0 {
		n := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if !seen[n] {
			seen[n] = true
			count++
			todo = append(todo, c.nodes[n].deps...)
		}
	}
	return count == len(c.nodes)
}

// CaptureInfo returns s's state and the id of its capture.
func (d *device) CaptureInfo(s driver.Stream) (driver.CaptureStatus, uint64, error) {
	const call = "CaptureInfo"
	if err := d.lock(call); err != nil {
		return 0, 0, err
	}
	defer d.m.mu.Unlock()
	st := d.stream(s)
	switch {
	case st == nil:
		return 0, 0, fail(call, driver.InvalidHandle, "")
	case st.legacy && d.m.implicit(d, false):
		return 0, 0, fail(call, driver.StreamCaptureImplicit, "")
	case st.cap == nil:
		return driver.CaptureNone, 0, nil
	case st.cap.invalid:
		return driver.CaptureInvalidated, 0, nil
	}
	return driver.CaptureActive, st.cap.id, nil
}

// CaptureNode returns the node of the latest work on s: the only one that its next work depends on.
func (d *device) CaptureNode(s driver.Stream) (driver.Node, error) {
	const call = "CaptureNode"
	if err := d.lock(call); err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	st := d.stream(s)
	switch {
	case st == nil:
		return 0, fail(call, driver.InvalidHandle, "")
	case st.cap == nil:
		return 0, fail(call, driver.IllegalState, "the stream is not being captured")
	case st.cap.invalid:
		return 0, fail(call, driver.StreamCaptureInvalidated, "")
	case len(st.deps) != 1:
		return 0, fail(call, driver.IllegalState, "the stream has no work yet, or has waited since")
	}
	return nodeHandle(st.cap.id, st.deps[0]), nil
}

// CaptureExchangeMode sets the thread's own mode and returns the old one.
func (d *device) CaptureExchangeMode(t driver.Thread, mode driver.CaptureMode) (driver.CaptureMode, error) {
	tok, err := d.lockThread("CaptureExchangeMode", t)
	if err != nil {
		return 0, err
	}
	defer d.m.mu.Unlock()
	if mode < driver.CaptureGlobal || mode > driver.CaptureRelaxed {
		return 0, fail("CaptureExchangeMode", driver.InvalidValue, "no such mode")
	}
	old := tok.mode
	tok.mode = mode
	return old, nil
}
