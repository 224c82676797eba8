package compile_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/rt"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

var (
	walks    = flag.Int("walks", walkPrograms, "how many programs TestWalkPrograms runs")
	walkFrom = flag.Uint64("walkfrom", 0, "the first of them")
)

// walk is a program drawn from a seed that uses its tensors in ways that a region does not see: between its steps, on other streams, with
// handles that it closes late or never.
type walk struct {
	seed    uint64
	x       *tenon.Exec
	r       *compile.Region
	region  bool
	streams []*cuda.Stream
	// params require gradients, state is changed in place, and given are made anew or swapped for every step.
	params, state, given []*tenon.Tensor
	kept                 []kept
	f                    func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor
	opt                  optim.Optimizer
	out                  string
}

// kept is a handle that outlives the step that made it.
type kept struct {
	t     *tenon.Tensor
	until int // the step before which it is closed, or never
}

// The features of a program, as bits of its seed.
func (w *walk) has(feature uint64) bool { return w.seed*0x9e3779b97f4a7c15>>32&feature != 0 }

const (
	hasStreams = 1 << iota
	hasFresh
	hasSwaps
	hasLoose
	hasPointers
	hasFunc
	hasBreaks
	hasMarks
	hasFrozen
	hasReset
	hasOptimizer
	hasLengths
	hasNumbers
	hasOutside
)

func newWalk(x *tenon.Exec, seed uint64, r *compile.Region, streams []*cuda.Stream) (*walk, error) {
	w := &walk{seed: seed, x: x, r: r, region: r != nil, streams: streams}
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 3 {
		w.params = append(w.params, w.make(rng).SetRequiresGrad(true))
		w.state = append(w.state, w.make(rng))
		w.given = append(w.given, w.make(rng))
	}
	w.f = func(x *tenon.Exec, a, b *tenon.Tensor) *tenon.Tensor {
		return x.Tanh(x.Mul(x.MatMul(x.Dropout(a, 0.25), w.params[2]), x.Sin(b)))
	}
	if w.region {
		w.f = compile.Func(w.f).Call
	}
	if w.has(hasOptimizer) {
		o, err := optim.NewSGD(func(yield func(string, *nn.Param) bool) {
			for i, t := range w.params {
				if !yield(fmt.Sprint(i), nn.NewParam(t)) {
					return
				}
			}
		}, optim.SGDOpt{LR: 0.125, Momentum: 0.5})
		if err != nil {
			return nil, err
		}
		w.opt = o
	}
	return w, nil
}

func (w *walk) make(rng *rand.Rand) *tenon.Tensor {
	v := make([]float32, side*side)
	for i := range v {
		v[i] = float32(rng.IntN(33)-16) / 8
	}
	return tenon.From(w.x, v, side, side)
}

// show adds a tensor's bytes to the program's output.
func (w *walk) show(x *tenon.Exec, t *tenon.Tensor) (err error) {
	x.Scope(func(x *tenon.Exec) {
		var b []byte
		if b, err = x.Bytes(x.NoGrad().Contiguous(t)); err == nil {
			w.out += fmt.Sprintf("%s\n", digest(b))
		}
	})
	return err
}

// between is the work before step n.
func (w *walk) between(n int, rng *rand.Rand) error {
	x := w.x
	if w.has(hasFresh) {
		w.given[0].Close()
		w.given[0] = w.make(rng)
	}
	if w.has(hasSwaps) && n%2 == 1 {
		w.given[1], w.given[2] = w.given[2], w.given[1]
	}
	for i := range w.kept {
		k := &w.kept[i]
		if k.t == nil || k.until != n {
			continue
		}
		if err := w.show(x, k.t); err != nil {
			return err
		}
		k.t.Close()
		k.t = nil
	}
	if w.has(hasLoose) && n%3 == 1 {
		for i := range w.kept {
			if w.kept[i].until > 100 {
				w.kept[i].t = nil
			}
		}
		runtime.GC()
	}
	if w.has(hasOutside) { // work on a separate stream, some of which reads tensors that are closed at once
		y := x
		if w.has(hasStreams) {
			y = x.On(w.streams[n%len(w.streams)])
		}
		for i := range w.kept {
			if k := &w.kept[i]; k.t != nil && rng.IntN(2) == 0 {
				y.NoGrad().AddInto(w.state[1], w.state[1], k.t)
				if rng.IntN(2) == 0 {
					y.Scope(func(y *tenon.Exec) { y.NoGrad().MulInto(k.t, k.t, y.Select(y.Select(w.given[1], 0, 0), 0, 1)) })
				}
				if rng.IntN(3) == 0 {
					k.t.Close()
					k.t = nil
				}
			}
		}
		y.Scope(func(y *tenon.Exec) { y.NoGrad().CopyInto(w.state[1], y.Tanh(w.state[1])) })
	}
	if !w.region {
		return nil
	}
	if w.has(hasMarks) {
		if err := compile.MarkStep(x); err != nil {
			return err
		}
	}
	if w.has(hasReset) && n == 5 {
		return compile.Reset(x)
	}
	return nil
}

// step is the region's function.
func (w *walk) step(x *tenon.Exec, n int) error {
	rng := rand.New(rand.NewPCG(w.seed, 2))
	rows := side
	if w.has(hasLengths) {
		rows = 1 + n%2*2
	}
	narrow := func(t *tenon.Tensor) *tenon.Tensor { return x.Narrow(t, 0, 0, rows) }
	live := []*tenon.Tensor{narrow(w.params[0]), narrow(w.params[1]), narrow(w.given[0]), narrow(w.given[1]), narrow(w.state[0])}
	pick := func() *tenon.Tensor { return live[rng.IntN(len(live))] }
	for range 3 + rng.IntN(12) {
		y := x
		if w.has(hasStreams) {
			if i := rng.IntN(4); i < len(w.streams) {
				y = x.On(w.streams[i])
			}
		}
		t, err := w.op(y, n, rows, rng, pick)
		if err != nil {
			return err
		}
		live = append(live, y.Clamp(t, y.Full(nil, -4, tenon.Float32), y.Full(nil, 4, tenon.Float32)))
		if w.has(hasBreaks) && rng.IntN(5) == 0 {
			if err := w.breaks(x, rng.IntN(4), live[len(live)-1]); err != nil {
				return err
			}
		}
	}
	loss := x.Mean(x.Add(x.Mul(pick(), pick()), live[len(live)-1]), nil)
	if loss.RequiresGrad() {
		if err := w.learn(x, n, loss); err != nil {
			return err
		}
	}
	for range 1 + rng.IntN(2) {
		w.keep(x, n, rng, x.Clone(x.Detach(pick())))
	}
	w.keep(x, n, rng, x.Detach(loss))
	w.keep(x, n, rng, x.Detach(live[len(live)-1]))
	return nil
}

func (w *walk) keep(x *tenon.Exec, n int, rng *rand.Rand, t *tenon.Tensor) {
	until := n + 1 + rng.IntN(3)
	if w.has(hasLoose) && rng.IntN(3) == 0 {
		until = 1000
	}
	if s := t.Shape(); len(s) == 0 || s[0] == side {
		w.kept = append(w.kept, kept{x.Keep(t), until})
	}
}

// breaks ends a segment.
func (w *walk) breaks(x *tenon.Exec, how int, t *tenon.Tensor) error {
	switch {
	case how == 0 && w.has(hasStreams):
		return x.WaitStream(w.streams[0])
	case how == 1 && w.has(hasPointers):
		t.DataPtr()
	case how == 2:
		return w.show(x, x.Detach(t))
	case w.region:
		return compile.Break(x)
	}
	return nil
}

// learn is a backward pass and an optimizer step.
func (w *walk) learn(x *tenon.Exec, n int, loss *tenon.Tensor) error {
	if err := x.Backward(loss); err != nil {
		return err
	}
	if w.opt != nil {
		if w.has(hasNumbers) {
			w.opt.SetLR(0, 1/float64(8+n))
		}
		if err := w.opt.Step(x); err != nil {
			return err
		}
		if n%3 == 0 {
			w.opt.ZeroGrad()
		}
		return nil
	}
	for _, q := range w.params {
		if g := q.Grad(); g != nil {
			y := x.NoGrad()
			y.AddInto(q, q, y.MulS(g, -0.25))
			if w.seed%2 == 0 {
				q.SetGrad(nil)
			}
		}
	}
	return nil
}

func (w *walk) op(x *tenon.Exec, n, rows int, rng *rand.Rand, pick func() *tenon.Tensor) (y *tenon.Tensor, err error) {
	a, b := pick(), pick()
	switch rng.IntN(20) {
	case 0:
		y = x.Add(a, b)
	case 1:
		y = x.Mul(a, b)
	case 2:
		v := 0.5
		if w.has(hasNumbers) {
			v = float64(n+1) / 8
		}
		y = x.Sub(a, x.MulS(b, v))
	case 3:
		y = x.Sin(a)
	case 4:
		y = x.MatMul(a, w.params[2])
	case 5:
		y = byRows(x, rng, a)
	case 6:
		y = x.Dropout(a, 0.25)
	case 7:
		s := x.Narrow(w.state[2], 0, 0, rows)
		x.AddInto(s, s, x.Detach(a))
		y = x.Tanh(s)
	case 8:
		t := x.Exp(x.MulS(a, 0.125))
		y = x.Add(t, b)
		t.Close()
	case 9:
		y = x.Clone(x.Detach(a))
		x.MulInto(y, y, x.Detach(b))
	case 10:
		y = x.MulS(a, 0.5)
		x.MulInto(y, y, b)
	case 11:
		y = x.Mul(a, x.Rand([]int{rows, side}, tenon.Float32))
		x.RandN([]int{3}, tenon.Float32).Close()
	case 12: // a result of an earlier step
		y = x.Add(a, b)
		for i := range w.kept {
			if k := &w.kept[i]; k.t != nil && len(k.t.Shape()) == 2 && rows == side {
				x.AddInto(k.t, k.t, x.Detach(a))
				y = x.Add(y, k.t)
				if i%3 == 0 {
					k.t.Close()
					k.t = nil
				}
				break
			}
		}
	case 13:
		y = x.Where(x.Gt(a, b), a, b)
	case 14:
		y = x.Add(a, b)
		if w.has(hasFunc) {
			y = w.f(x, a, b)
		}
	case 15: // a kernel of the program's own
		c := 0.5
		if w.has(hasNumbers) {
			c = float64(n%2) / 4
		}
		y = launchBend(x.NoGrad(), x.Detach(a), c)
	case 16:
		s := x.Narrow(w.state[2], 0, 0, rows)
		x.NoGrad().Launch(gather, tenon.Over(rows), tenon.In(x.NoGrad().Contiguous(x.Detach(a))), tenon.Out(s), tenon.Integer(int64(rows)))
		y = x.Add(s, b)
	case 17:
		y = x.Apply(bent(0.25), a)[0]
	case 18, 19:
		y = writtenOut(x, rng, a, b)
	}
	return y, nil
}

// outer is a step of functions whose backward pass runs outside of a region.
func (w *walk) outer(n int) (err error) {
	w.x.Scope(func(x *tenon.Exec) {
		y := w.f(x, w.params[0], w.given[0])
		if n%3 != 2 {
			y = x.Clone(w.f(x, x.MulS(y, 2), w.given[1]))
		}
		if err = w.learn(x, n, x.Sum(y, nil)); err == nil {
			err = w.show(x, y)
		}
	})
	return err
}

const walkSteps = 9

func (w *walk) run() error {
	rng := rand.New(rand.NewPCG(w.seed, 3))
	for n := range walkSteps {
		if err := w.between(n, rng); err != nil {
			return fmt.Errorf("before step %d: %w", n, err)
		}
		if w.has(hasFunc) && w.seed%3 > 0 {
			if err := w.outer(n); err != nil {
				return fmt.Errorf("functions of step %d: %w", n, err)
			}
		}
		if err := w.do(n); err != nil {
			return fmt.Errorf("step %d: %w", n, err)
		}
	}
	for i := range w.kept {
		if k := &w.kept[i]; k.t != nil {
			if err := w.show(w.x, k.t); err != nil {
				return err
			}
		}
	}
	for i := range w.params {
		for _, t := range []*tenon.Tensor{w.params[i], w.state[i], w.given[i], w.params[i].Grad()} {
			if t != nil {
				if err := w.show(w.x, t); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (w *walk) do(n int) (err error) {
	step := func(x *tenon.Exec) error { return w.step(x, n) }
	switch {
	case !w.region:
		stopped := tenon.Try(func() { w.x.Scope(func(x *tenon.Exec) { err = step(x) }) })
		if err == nil {
			err = stopped
		}
		return err
	case w.has(hasFrozen) && n%4 == 3:
		return compile.Frozen(w.x, func(x *tenon.Exec) error { return w.r.Do(x, step) })
	}
	return w.r.Do(w.x, step)
}

func (w *walk) close() {
	if w.opt != nil {
		w.opt.Close()
	}
	for _, list := range [][]*tenon.Tensor{w.params, w.state, w.given} {
		for _, t := range list {
			if t.RequiresGrad() {
				t.SetGrad(nil)
			}
			t.Close()
		}
	}
	for _, k := range w.kept {
		if !w.has(hasLoose) {
			k.t.Close()
		}
	}
	w.kept = nil
}

// openRandom opens a simulated device whose streams run in an order drawn from the seed or, if memory is 0 and the tests use one, the GPU.
func openRandom(t testing.TB, seed, memory uint64, wrap func(own driver.Device) driver.Device) *tenon.Exec {
	t.Helper()
	sel := rt.Selector{Kind: rt.Sim, Memory: memory, Wrap: func(own driver.Device) driver.Device {
		if d, ok := own.(*hostsim.Device); ok {
			d.SetPolicy(hostsim.Random(seed))
		}
		if wrap != nil {
			return wrap(own)
		}
		return own
	}}
	if onGPU() && memory == 0 {
		sel.Kind = rt.CUDA
	}
	dev, err := rt.Open(sel)
	if err != nil {
		t.Fatal(err)
	}
	host, err := rt.Host()
	if err != nil {
		t.Fatal(err)
	}
	x := (*tenon.Exec)(core.New(dev, host))
	t.Cleanup(func() { x.Close() }) // otherwise its reserved addresses stay with the process
	return x
}

// perDevice is how many random programs share a device. Each leaves kernels there, and programs collect garbage often, which takes longer
// the more kernels there are.
const perDevice = 10

// eachProgram calls f with the seeds of the given number of random programs, and opens their devices.
func eachProgram(t *testing.T, programs int, open func(t *testing.T, seed uint64) *tenon.Exec,
	f func(t *testing.T, x *tenon.Exec, streams []*cuda.Stream, seed uint64)) {
	for from := *walkFrom; from < *walkFrom+uint64(programs); from += perDevice {
		t.Run(fmt.Sprint("from", from), func(t *testing.T) {
			x := open(t, from)
			streams := streamsOf(t, x)
			for seed := from; seed < min(from+perDevice, *walkFrom+uint64(programs)); seed++ {
				f(t, x, streams, seed)
			}
		})
	}
}

// walkProgram runs the program, in r unless r is nil, and returns its output.
func walkProgram(x *tenon.Exec, streams []*cuda.Stream, seed uint64, r *compile.Region) (out string, s compile.Stats, err error) {
	if err := x.Generator().SetSeed(seed); err != nil {
		return "", s, err
	}
	stopped := tenon.Try(func() {
		var w *walk
		if w, err = newWalk(x, seed, r, streams); err != nil {
			return
		}
		defer w.close()
		err = w.run()
		if out = w.out; r != nil {
			s = r.Stats(x)
		}
	})
	if err == nil {
		err = stopped
	}
	return out, s, err
}

// leftOver waits until at most live storages are live, and returns how many more there are.
func leftOver(x *tenon.Exec, live int) int {
	for range 200 {
		if core.LiveStorages() <= live {
			break
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	return core.LiveStorages() - live
}

// apart describes the first difference between two results.
func apart(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			return fmt.Sprintf("number %d of %d is\n%s\nwant\n%s", i, len(w), g[i], w[i])
		}
	}
	return fmt.Sprintf("there are %d, want %d", len(g), len(w))
}

// bothWays runs the program with and without a region and compares the results; neither may leak memory.
func bothWays(t *testing.T, x *tenon.Exec, streams []*cuda.Stream, seed uint64) compile.Stats {
	live := core.LiveStorages()
	want, _, err := walkProgram(x, streams, seed, nil)
	if err != nil {
		t.Fatalf("program %d, eager: %v", seed, err)
	}
	if n := leftOver(x, live); n > 0 {
		t.Errorf("program %d leaves %d storages, eager", seed, n)
	}
	got, s, err := walkProgram(x, streams, seed, compile.New(compile.Opt{Branches: int(seed % 4)})) // 0 means many
	if err != nil {
		t.Errorf("program %d: %v", seed, err)
	} else if got != want {
		t.Errorf("program %d gives other results in regions: %s", seed, apart(got, want))
	}
	must(t, compile.Reset(x))
	if n := leftOver(x, live); n > 0 {
		t.Errorf("program %d leaves %d storages", seed, n)
	}
	return s
}

// Random programs that do more than regions see leave the same bits with and without regions, and leak no memory.
func TestWalkPrograms(t *testing.T) {
	total := compile.Stats{}
	open := func(t *testing.T, seed uint64) *tenon.Exec { return openRandom(t, seed, 0, nil) }
	eachProgram(t, *walks, open, func(t *testing.T, x *tenon.Exec, streams []*cuda.Stream, seed uint64) {
		s := bothWays(t, x, streams, seed)
		total.WarmUps += s.WarmUps
		total.Recordings += s.Recordings
		total.Replays += s.Replays
		total.Plain += s.Plain
	})
	t.Logf("%+v", total)
	if *walks >= 50 && (total.Replays < *walks || total.Recordings < *walks) {
		t.Error("too little was replayed")
	}
}

// guardedPrograms is how many programs TestWalkProgramsGuarded runs.
const guardedPrograms = 20

// The same with guard zones and poison: neither changes what a graph reads, and no graph seems to write past the end of its memory.
func TestWalkProgramsGuarded(t *testing.T) {
	open := func(t *testing.T, seed uint64) *tenon.Exec {
		x := openRandom(t, seed, 0, nil)
		x.Device().SetMemoryChecks(cuda.MemoryChecks{Guard: true, Poison: true})
		t.Cleanup(func() { must(t, x.Close()) })
		return x
	}
	replays := 0
	eachProgram(t, guardedPrograms, open, func(t *testing.T, x *tenon.Exec, streams []*cuda.Stream, seed uint64) {
		replays += bothWays(t, x, streams, seed).Replays
	})
	if replays == 0 {
		t.Error("nothing was replayed")
	}
}
