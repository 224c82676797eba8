package rt

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
)

// building is a built-in kernel that is being built. err is errUnbuilt if BuildAhead could not build it.
type building struct {
	once sync.Once
	f    Func
	err  error
}

var errUnbuilt = errors.New("rt: the kernel was not built ahead")

// build returns the kernel of s, built by the caller or by whoever is building it already. What went wrong in BuildAhead does not count.
func (d *Device) build(s *kernels.Spec) (Func, error) {
	start := time.Now()
	defer func() { d.stats.waited.Add(int64(time.Since(start))) }()
	of := d.chosen(s)
	for {
		b := d.begin(&of)
		b.once.Do(func() { d.finish(&of, b, d.load) })
		if b.err == nil && of != *s {
			d.standFor(s, b.f)
		}
		if b.err != errUnbuilt {
			return b.f, b.err
		}
	}
}

// kernelsOfKin is how many kernels for rows of different lengths are built before a general one stands for the others.
const kernelsOfKin = 2

// SetKernelsOfKin sets that number, for tests, and forgets the kernels that general ones could stand for.
func (d *Device) SetKernelsOfKin(n int) {
	if d.library != nil {
		d.library.SetKernelsOfKin(n)
		return
	}
	d.funcsMu.Lock()
	defer d.funcsMu.Unlock()
	d.mostOfKin = n
	clear(d.kin)
	for s := range d.funcs { //tenon:unordered they are only forgotten
		if _, _, ok := s.General(); ok {
			delete(d.funcs, s)
		}
	}
}

// chosen returns s, or the general kernel that stands for it because rows have many lengths.
func (d *Device) chosen(s *kernels.Spec) kernels.Spec {
	general, kin, ok := s.General()
	if !ok {
		return *s
	}
	d.funcsMu.Lock()
	defer d.funcsMu.Unlock()
	switch own := d.kin[kin]; {
	case slices.Contains(own, *s):
	case len(own) >= d.mostOfKin:
		return general
	default:
		d.kin[kin] = append(own, *s)
	}
	return *s
}

// standFor makes f the kernel of s too.
func (d *Device) standFor(s *kernels.Spec, f Func) {
	d.funcsMu.Lock()
	defer d.funcsMu.Unlock()
	d.funcs[*s] = f
}

// begin returns the building of s, which may be done.
func (d *Device) begin(s *kernels.Spec) *building {
	d.funcsMu.Lock()
	defer d.funcsMu.Unlock()
	if f, ok := d.funcs[*s]; ok {
		b := &building{f: f}
		b.once.Do(func() {})
		return b
	}
	b := d.buildings[*s]
	if b == nil {
		b = &building{}
		d.buildings[*s] = b
	}
	return b
}

// finish builds the kernel of s, loads it with load, and ends b. After a panic, b.err is errUnbuilt.
func (d *Device) finish(s *kernels.Spec, b *building, load func(image) (Func, error)) {
	b.err = errUnbuilt
	defer func() {
		d.funcsMu.Lock()
		defer d.funcsMu.Unlock()
		if b.err == nil {
			d.funcs[*s] = b.f
			d.stats.built.Add(1)
		}
		delete(d.buildings, *s)
	}()
	key := d.keptKey(s)
	im, ok := d.keptImage(key)
	if !ok {
		var err error
		if im, err = d.image(kernels.Build(s)); err != nil {
			b.err = err
			return
		}
		d.keep(key, im)
	}
	b.f, b.err = load(im)
}

// The ways in which a device builds ahead. Only tests set one.
const (
	aheadOnGPUs int32 = iota
	aheadAnyway
	aheadAtOnce // and BuildAhead waits
)

// BuildsAhead reports whether BuildAhead does anything: the driver takes long to compile kernels. The simulator does not.
func (d *Device) BuildsAhead() bool {
	return d.library == nil && (d.info.Image == driver.FormatPTX || d.ahead.Load() != aheadOnGPUs)
}

// SetBuildsAhead makes BuildAhead work on a simulated device too, for tests; with wait, it returns when all is built.
func (d *Device) SetBuildsAhead(wait bool) {
	d.ahead.Store(aheadAnyway)
	if wait {
		d.ahead.Store(aheadAtOnce)
	}
}

// buildSlots bounds how many kernels the process builds ahead at a time, however many devices and sessions ask for some.
var buildSlots = make(chan struct{}, max(2, runtime.NumCPU()))

// BuildAhead begins to build the kernels of specs that nobody has begun to build, in that order and side by side, and does not wait. Func
// builds a kernel that is not begun when it is needed, and one that could not be built here. Close waits for kernels that are begun.
func (d *Device) BuildAhead(specs []kernels.Spec) {
	if !d.BuildsAhead() {
		return
	}
	var rest []kernels.Spec
	for i := range specs {
		if _, ok := d.built(&specs[i]); !ok {
			rest = append(rest, specs[i])
		}
	}
	n := min(len(rest), runtime.GOMAXPROCS(0))
	if !d.addBuilders(n) {
		return
	}
	var next atomic.Int64
	var builders sync.WaitGroup
	for range n {
		builders.Go(func() {
			defer d.builders.Done()
			for i := next.Add(1) - 1; i < int64(len(rest)); i = next.Add(1) - 1 {
				buildSlots <- struct{}{}
				d.buildAhead(&rest[i])
				<-buildSlots
			}
		})
	}
	if d.ahead.Load() == aheadAtOnce {
		builders.Wait()
	}
}

// addBuilders announces n builders for Close to wait for, unless Close has begun.
func (d *Device) addBuilders(n int) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closing.Load() {
		return false
	}
	d.builders.Add(n)
	return true
}

// buildAhead builds the kernel of s, unless the device is being closed or somebody has begun to.
// Nobody is told of an error or of a panic: who needs the kernel meets it.
func (d *Device) buildAhead(s *kernels.Spec) {
	of := d.chosen(s)
	d.funcsMu.RLock()
	begun := d.buildings[of] != nil
	d.funcsMu.RUnlock()
	if begun || d.closing.Load() {
		return
	}
	defer func() { _ = recover() }()
	b := d.begin(&of)
	b.once.Do(func() {
		d.stats.ahead.Add(1)
		d.finish(&of, b, func(im image) (Func, error) {
			f, err := d.loadHeld(im)
			if err != nil {
				err = errUnbuilt
			}
			return f, err
		})
	})
}

// KernelsBuiltAhead returns how many kernels BuildAhead has begun to build, with those that it could not build.
func (d *Device) KernelsBuiltAhead() int64 { return d.stats.ahead.Load() }

// NotLearned notes why it could not be found out which kernels a call needs.
func (d *Device) NotLearned(err error) { d.stats.unlearned.Store(&err) }

// Unlearned returns the latest error of NotLearned, or nil.
func (d *Device) Unlearned() error {
	if err := d.stats.unlearned.Load(); err != nil {
		return *err
	}
	return nil
}
