package agree

import (
	"bytes"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/rt"
)

// trial is one call of a kernel engine, after which the written arrays must hold the same bits on both devices.
type trial struct {
	name   string
	arrays []*array
	run    func(is kernels.Issuer, ops []kernels.Operand) error
	// index32 lowers the number of elements that 32-bit indexes can address; 0 leaves it unchanged.
	index32 int
	// judge, if not nil, says what is wrong with a device's memory after the trial; image is the memory before it, and ops are the trial's
	// arrays in it. The devices are then not compared.
	judge func(ops []*array, image, mem []byte) string
	// optional is set if the kernel may not exist for these types.
	optional bool

	steps [2][]step
}

// hopper are the limits of an H200, which launches are planned for on every device.
var hopper = kernels.Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, MaxThreadsPerBlock: 1024, SharedPerBlock: 232448, Major: 9}

const (
	// arenaBytes is the size of each device's memory. Batches fill the first part; the rest is for workspaces.
	arenaBytes = 512 << 20
	imageBytes = 256 << 20
	// batchBytes is where a batch ends without a GPU, so that the same pages of the host hold one batch after the other.
	batchBytes = 16 << 20
	// guard is the number of bytes after every array that are also compared.
	guard = 64
	// batchTrials bounds what is compiled and compared at a time.
	batchTrials = 400
)

// pair runs trials on two devices and compares the results.
type pair struct {
	t     *testing.T
	sides [2]*side
	lib   *library
	// limits are the device limits that launches are planned for.
	limits kernels.Limits
	rng    *rand.Rand
	// threads are the numbers of processors on which each device's kernels run and compile, as far as the host can control it.
	threads [2]int

	// shard is this process's share of the trials.
	shard shard
	batch []*trial
	image []byte
	// after are the devices' memories after the batch.
	after [2][]byte
	// compared counts trials and elements, by the prefixes of their names.
	compared map[string]*tally
	// loaded maps each kernel to the name prefix of the trials that first launched it.
	loaded map[string]string
	// reports are the first differences, which are not errors if quiet; bad counts all of them.
	reports []string
	quiet   bool
	bad     int
}

type tally struct{ trials, elements, kernels int }

// newPair opens the simulator and the GPU or, if there is none, the CPU device on one thread and a simulated GPU on several, which runs
// blocks in random order.
func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{t: t, lib: newLibrary(), image: make([]byte, 0, imageBytes), limits: hopper, rng: rand.New(rand.NewPCG(21, 42)),
		compared: map[string]*tally{}, loaded: map[string]string{}, shard: shard{0, 1}}
	n := max(2, runtime.NumCPU())
	machines, names := [2]*machine{openSim(t)}, [2]string{"simulator", "GPU"}
	p.threads = [2]int{n, n}
	if rt.GPUs() > 0 {
		machines[1] = openGPU(t)
	} else {
		machines[1] = open(t, hostsim.New(hostsim.Options{Policy: hostsim.Random(77)}))
		names = [2]string{"processor", "simulated GPU"}
		p.threads = [2]int{1, n + 1}
	}
	for i, m := range machines {
		s, err := newSide(m, names[i], arenaBytes)
		if err != nil {
			t.Fatal(err)
		}
		p.sides[i] = s
	}
	return p
}

// onGPU reports whether the second device is a GPU.
func (p *pair) onGPU() bool { return p.sides[1].Info().Image == driver.FormatPTX }

// try adds a trial, and runs the batch when it is full. It reports whether the kernel exists.
func (p *pair) try(tr trial) bool {
	size := 0
	if kind, _, _ := strings.Cut(tr.name, " "); tr.judge != nil && exceptions[kind] == "" {
		p.t.Fatalf("%s: the numerics law excepts no %s", tr.name, kind)
	}
	for _, a := range tr.arrays {
		if a != absent {
			size += a.count*a.t.Size() + guard + 512
		}
	}
	if size > imageBytes {
		p.t.Fatalf("%s: %d bytes of arrays, where there is room for %d", tr.name, size, imageBytes)
	}
	room := imageBytes
	if !p.onGPU() {
		room = batchBytes
	}
	if len(p.batch) == batchTrials || len(p.batch) > 0 && len(p.image)+size > room {
		p.flush()
	}
	start := len(p.image)
	p.place(&tr)
	for i := range p.sides {
		if err := p.record(&tr, i); err != nil {
			p.image = p.image[:start]
			if !tr.optional || !errors.Is(err, errRefused) {
				p.t.Errorf("%s: %v", tr.name, err)
			}
			return false
		}
		if !p.shard.has(&tr) {
			p.image = p.image[:start]
			return true
		}
	}
	p.fill(&tr)
	p.batch = append(p.batch, &tr)
	return true
}

// place copies the trial's arrays, which other trials may share, and assigns them space in the image of the batch's memory. An array that
// occurs twice gets one place.
func (p *pair) place(tr *trial) {
	placed := map[*array]*array{absent: absent}
	at := len(p.image)
	arrays := make([]*array, len(tr.arrays))
	for i, a := range tr.arrays {
		if _, ok := placed[a]; !ok {
			own := *a
			own.at = (at + 511) &^ 511
			at = own.at + own.count*own.t.Size() + guard
			placed[a] = &own
		}
		arrays[i] = placed[a]
	}
	tr.arrays, p.image = arrays, p.image[:at]
}

// fill sets the contents of the trial's arrays and of the gaps between them.
func (p *pair) fill(tr *trial) {
	h := fnv.New64()
	h.Write([]byte(tr.name))
	rng := rand.New(rand.NewPCG(h.Sum64(), 1))
	seen := map[*array]bool{absent: true}
	for _, a := range tr.arrays {
		if seen[a] {
			continue
		}
		seen[a] = true
		t, n := a.t, a.count
		if t.IsComplex() {
			t, n = t.Real(), 2*n
		}
		end := a.at + copy(p.image[a.at:], a.fill(rng, t, n))
		for i := range guard {
			p.image[end+i] = 0xa5
		}
	}
}

// record records the trial's launches on one device.
func (p *pair) record(tr *trial, i int) error {
	base := uint64(p.sides[i].arena)
	r := &recorder{lib: p.lib, limits: p.limits, index32: 1<<31 - 1, next: base + imageBytes, end: base + arenaBytes}
	if tr.index32 > 0 {
		r.index32 = tr.index32
	}
	ops := make([]kernels.Operand, len(tr.arrays))
	for j, a := range tr.arrays {
		ops[j] = a.operand(base)
	}
	if err := tr.run(r, ops); err != nil {
		return err
	}
	tr.steps[i] = r.steps
	return nil
}

// flush runs the batch on both devices at once and compares the memory.
func (p *pair) flush() {
	p.t.Helper()
	var results [2][]byte
	var errs [2]error
	if p.onGPU() {
		var wg sync.WaitGroup
		for i := range p.sides {
			wg.Go(func() { results[i], errs[i] = p.work(i) })
		}
		wg.Wait()
	} else {
		for i := range p.sides {
			results[i], errs[i] = p.work(i)
		}
	}
	for i, err := range errs {
		if err != nil {
			p.t.Fatalf("%s: %v", p.sides[i].name, err)
		}
	}
	for _, tr := range p.batch {
		if p.refused(tr) {
			continue
		}
		p.compare(tr, results)
	}
	p.batch, p.image = p.batch[:0], p.image[:0]
}

// refused reports kernels of the trial that a device could not load, and whether there are any.
func (p *pair) refused(tr *trial) bool {
	for i, s := range p.sides {
		for _, st := range tr.steps[i] {
			if st.prog != nil && s.failed[st.prog.Name] != nil {
				p.report(tr, fmt.Sprintf("%s: %v", s.name, s.failed[st.prog.Name]))
				return true
			}
		}
	}
	return false
}

// work runs the batch on one device and returns the memory afterwards.
func (p *pair) work(i int) ([]byte, error) {
	s := p.sides[i]
	var progs []*kir.Program
	seen := map[string]bool{}
	for _, tr := range p.batch {
		for _, st := range tr.steps[i] {
			if st.prog != nil && !seen[st.prog.Name] {
				seen[st.prog.Name] = true
				progs = append(progs, st.prog)
			}
		}
	}
	s.prepare(progs, runtime.GOMAXPROCS(0))
	th := s.Enter()
	defer th.Leave()
	if len(p.image) == 0 {
		return nil, nil
	}
	if err := s.CopyHtoD(s.arena, p.image, s.stream); err != nil {
		return nil, err
	}
	if err := p.runBatch(th, i); err != nil {
		return nil, err
	}
	after := slices.Grow(p.after[i][:0], len(p.image))[:len(p.image)]
	p.after[i] = after
	if err := s.CopyDtoH(after, s.arena, s.stream); err != nil {
		return nil, err
	}
	return after, s.StreamSynchronize(th, s.stream)
}

// runBatch launches the batch on one device; without a GPU each device has its own number of processors.
func (p *pair) runBatch(th driver.Thread, i int) error {
	if !p.onGPU() {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(p.threads[i]))
	}
	for _, tr := range p.batch {
		if err := p.sides[i].run(th, tr.steps[i]); err != nil {
			return fmt.Errorf("%s: %w", tr.name, err)
		}
	}
	return nil
}

// compare judges one trial: what was written must be equal, everything else unchanged.
func (p *pair) compare(tr *trial, results [2][]byte) {
	kind, _, _ := strings.Cut(tr.name, " ")
	c := p.compared[kind]
	if c == nil {
		c = &tally{}
		p.compared[kind] = c
	}
	c.trials++
	for _, st := range tr.steps[0] {
		if st.prog != nil && p.loaded[st.prog.Name] == "" {
			p.loaded[st.prog.Name] = kind
			c.kernels++
		}
	}
	different := 0
	for _, a := range tr.arrays {
		if a == absent || !a.out {
			continue
		}
		if end := a.at + a.count*a.t.Size(); !bytes.Equal(results[0][a.at:end], results[1][a.at:end]) {
			different = 1
		}
	}
	for j, a := range tr.arrays {
		if a == absent {
			continue
		}
		end := a.at + a.count*a.t.Size()
		for i, s := range p.sides {
			from := end
			if !a.out {
				from = a.at
			}
			if !bytes.Equal(results[i][from:end+guard], p.image[from:end+guard]) {
				p.report(tr, fmt.Sprintf("operand %d (%v %v): %s writes outside its results", j, a.t, a.shape, s.name))
			}
		}
		if !a.out {
			continue
		}
		c.elements += a.count
		x, y := results[0][a.at:end], results[1][a.at:end]
		if tr.judge != nil {
			for i, s := range p.sides[:1+different] { // equal results are judged once: it takes longer than the trial
				if text := tr.judge(tr.arrays, p.image, results[i]); text != "" {
					p.report(tr, s.name+": "+text)
				}
			}
			continue
		}
		text := differ(a.t.Real(), x, y)
		if text != "" {
			p.report(tr, fmt.Sprintf("operand %d (%v %v %v): %s", j, a.t, a.shape, a.stride, text))
		}
	}
}

func (p *pair) report(tr *trial, text string) {
	if p.bad++; p.bad > 100 {
		return
	}
	var names []string
	for _, st := range tr.steps[0] {
		if st.prog != nil {
			names = append(names, st.prog.Name)
		}
	}
	r := fmt.Sprintf("%s [%s]: %s", tr.name, strings.Join(names, ", "), text)
	if p.reports = append(p.reports, r); !p.quiet {
		p.t.Error(r)
	}
}

// finish runs the remaining trials and prints the totals.
func (p *pair) finish() {
	p.t.Helper()
	p.flush()
	if *shardFlag != "" {
		p.print()
		return
	}
	logTallies(p.t, p.compared, p.sides[0].name+" and "+p.sides[1].name)
	if p.bad > 100 {
		p.t.Errorf("%d more arrays differ", p.bad-100)
	}
}

// logTallies prints counts and their sums.
func logTallies(t *testing.T, tallies map[string]*tally, devices string) {
	t.Helper()
	var all tally
	for _, kind := range slices.Sorted(maps.Keys(tallies)) {
		c := tallies[kind]
		t.Logf("%-12s %5d calls, %5d kernels, %9d elements", kind, c.trials, c.kernels, c.elements)
		all.trials, all.kernels, all.elements = all.trials+c.trials, all.kernels+c.kernels, all.elements+c.elements
	}
	t.Logf("%s: %d kernels, %d calls, %d elements compared", devices, all.kernels, all.trials, all.elements)
}

// realBits returns x as an element of the real type t; integers get 50 times as much.
func realBits(t dtype.DType, x float64) uint64 {
	switch t {
	case dtype.Float64:
		return math.Float64bits(x)
	case dtype.Float32:
		return uint64(math.Float32bits(float32(x)))
	case dtype.Float16:
		return uint64(dtype.F16FromFloat64(x))
	case dtype.BFloat16:
		return uint64(dtype.BF16FromFloat64(x))
	case dtype.Bool:
		if x > 0 {
			return 1
		}
		return 0
	}
	return uint64(int64(x * 50))
}
