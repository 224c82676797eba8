package drivertest

import (
	"math/rand/v2"

	"tenon.dev/internal/driver"
)

// randomOp is one operation of a random program on buffers: set dst to v, dst += v*src, or copy src to dst.
type randomOp struct {
	kind     int
	dst, src int
	v        float32
	stream   int
}

const (
	randomSet = iota
	randomAdd
	randomCopy
)

// The size of a random program, and of each of its buffers in elements.
const (
	randomOps     = 60
	randomBuffers = 6
	randomStreams = 4
	randomN       = 64
)

// testRandomPrograms runs random programs over several streams with the waits that their hazards need, and each also as a graph, and
// compares every buffer with the result of running the operations in order.
func testRandomPrograms(f *fixture) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ops := make([]randomOp, randomOps)
		for i := range ops {
			ops[i] = randomOp{rng.IntN(3), rng.IntN(randomBuffers), rng.IntN(randomBuffers), float32(rng.IntN(3) - 1),
				rng.IntN(randomStreams)}
			if ops[i].src == ops[i].dst {
				ops[i].kind = randomSet
			}
		}
		f.runRandom(ops, false)
		f.runRandom(ops, true)
		if f.Failed() {
			f.Fatalf("seed %d", seed)
		}
	}
}

// runRandom runs one program, captured or not.
func (f *fixture) runRandom(ops []randomOp, captured bool) {
	f.Helper()
	var streams [randomStreams]driver.Stream
	var bufs [randomBuffers]driver.Ptr
	var model [randomBuffers]float32
	for i := range streams {
		streams[i] = f.stream()
	}
	for i := range bufs {
		bufs[i] = f.alloc(4 * randomN)
		model[i] = float32(i)
		f.fill(bufs[i], model[i], randomN)
	}
	f.fn("saxpy")
	program := func() {
		start := f.event(false)
		for _, s := range streams[1:] {
			f.fork(streams[0], start, s)
		}
		f.issueRandom(ops, &streams, &bufs)
		for _, s := range streams[1:] {
			f.fork(s, f.event(false), streams[0])
		}
	}
	if captured {
		x := f.instantiate(f.capture(streams[0], driver.CaptureThreadLocal, program))
		f.ok(f.d.GraphLaunch(x, streams[0]))
	} else {
		program()
	}
	for _, o := range ops {
		switch o.kind {
		case randomSet:
			model[o.dst] = o.v
		case randomAdd:
			model[o.dst] += o.v * model[o.src]
		case randomCopy:
			model[o.dst] = model[o.src]
		}
	}
	for i, p := range bufs {
		f.want(streams[0], p, model[i], randomN)
	}
}

// issueRandom queues the operations, each with waits for the operations on other streams that must come before it.
func (f *fixture) issueRandom(ops []randomOp, streams *[randomStreams]driver.Stream, bufs *[randomBuffers]driver.Ptr) {
	f.Helper()
	type use struct {
		e      driver.Event
		stream int
	}
	var writer [randomBuffers]*use
	var readers [randomBuffers][]*use
	after := func(u *use, stream int) {
		if u != nil && u.stream != stream {
			f.ok(f.d.StreamWait(streams[stream], u.e))
		}
	}
	for _, o := range ops {
		s := streams[o.stream]
		me := &use{f.event(false), o.stream}
		after(writer[o.dst], o.stream)
		for _, r := range readers[o.dst] {
			after(r, o.stream)
		}
		if o.kind != randomSet {
			after(writer[o.src], o.stream)
			readers[o.src] = append(readers[o.src], me)
		}
		switch o.kind {
		case randomSet:
			f.set(s, bufs[o.dst], o.v, randomN)
		case randomAdd:
			f.saxpy(s, bufs[o.src], bufs[o.dst], o.v, randomN)
		case randomCopy:
			f.ok(f.d.CopyDtoD(bufs[o.dst], bufs[o.src], 4*randomN, s))
		}
		writer[o.dst], readers[o.dst] = me, nil
		f.ok(f.d.EventRecord(me.e, s))
	}
}
