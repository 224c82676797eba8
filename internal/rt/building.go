package rt

import (
	"runtime"
	"sync"
	"sync/atomic"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
)

// building is a built-in kernel that is being built, or could not be: then the next caller that needs it gets the error, and the one after
// builds again.
type building struct {
	once sync.Once
	f    Func
	err  error
}

// build returns the kernel of s once it is built, by the caller or by whoever began before.
func (d *Device) build(s *kernels.Spec) (Func, error) {
	b := d.begin(s)
	b.once.Do(func() { d.finish(s, b) })
	if b.err != nil {
		d.funcsMu.Lock()
		if d.buildings[*s] == b {
			delete(d.buildings, *s)
		}
		d.funcsMu.Unlock()
	}
	return b.f, b.err
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

// finish builds the kernel of s.
func (d *Device) finish(s *kernels.Spec, b *building) {
	key := d.keptKey(s)
	im, ok := d.keptImage(key)
	if !ok {
		if im, b.err = d.image(kernels.Build(s)); b.err != nil {
			return
		}
		d.keep(key, im)
	}
	if b.f, b.err = d.load(im); b.err != nil {
		return
	}
	d.funcsMu.Lock()
	d.funcs[*s] = b.f
	delete(d.buildings, *s)
	d.funcsMu.Unlock()
	d.stats.built.Add(1)
}

// BuildsAhead reports whether BuildAhead does anything: the driver takes long to compile kernels. The simulator does not.
func (d *Device) BuildsAhead() bool {
	return d.library == nil && (d.info.Image == driver.FormatPTX || d.awaits.Load())
}

// SetBuildsAhead makes BuildAhead work on a simulated device too, and wait until all is built, for tests.
func (d *Device) SetBuildsAhead() { d.awaits.Store(true) }

// BuildAhead begins to build the kernels of specs that are not built, side by side and in that order, and does not wait. Func takes over
// those that nobody has begun by then. Errors are Func's.
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
	var next atomic.Int64
	var builders sync.WaitGroup
	for range min(len(rest), runtime.GOMAXPROCS(0)) {
		builders.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(rest)) && !d.closing.Load(); i = next.Add(1) - 1 {
				b := d.begin(&rest[i])
				b.once.Do(func() {
					d.stats.ahead.Add(1)
					d.finish(&rest[i], b)
				})
			}
		})
	}
	if d.awaits.Load() {
		builders.Wait()
	}
}

// KernelsBuiltAhead returns how many kernels BuildAhead has begun to build.
func (d *Device) KernelsBuiltAhead() int64 { return d.stats.ahead.Load() }
