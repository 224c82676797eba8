package rt

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/knob"
)

// loads records the texts that are loaded.
type loads struct {
	driver.Device
	texts [][]byte
}

func (l *loads) LoadModule(t driver.Thread, text []byte) (driver.Module, error) {
	l.texts = append(l.texts, bytes.Clone(text))
	return l.Device.LoadModule(t, text)
}

// specs is an issuer that records which kernels it was asked for.
type specs struct {
	l      kernels.Launch
	limits *kernels.Limits
	all    []kernels.Spec
}

func (s *specs) NewLaunch() *kernels.Launch     { s.l.Reset(); return &s.l }
func (s *specs) Issue(l *kernels.Launch) error  { s.all = append(s.all, l.Spec); return nil }
func (s *specs) Workspace(int) (uint64, error)  { return 1 << 20, nil }
func (s *specs) Limits() *kernels.Limits        { return s.limits }
func (s *specs) Index32() int                   { return 1<<31 - 1 }
func (s *specs) Memset(uint64, byte, int) error { return nil }
func operand(t dtype.DType, at uint64) kernels.Operand {
	return kernels.Operand{Ptr: at << 20, DType: t, Shape: []int{64}, Stride: []int{1}}
}

// unary returns the kernel of an operation with one operand.
func unary(t *testing.T, d *Device, op *kernels.PointOp) *kernels.Spec {
	t.Helper()
	s := &specs{limits: &d.limits}
	f32 := dtype.Float32
	ok(t, kernels.Pointwise(s, op, f32, nil, []kernels.Operand{operand(f32, 1)}, []kernels.Operand{operand(f32, 2)}))
	return &s.all[0]
}

// group fuses several operations with one operand into one.
func group(t *testing.T, ops ...*kernels.PointOp) *kernels.PointOp {
	t.Helper()
	f32 := dtype.Float32
	var steps []kernels.FusedStep
	for i, op := range ops {
		steps = append(steps, kernels.FusedStep{Op: op, Compute: f32, Ins: []kernels.FusedIn{{Value: i}},
			Outs: []kernels.FusedOut{{DType: f32}}})
	}
	op := kernels.Fuse([]dtype.DType{f32}, steps, []int{len(ops)})
	if op == nil {
		t.Fatal("the group has no kernel")
	}
	return op
}

func openNoting(t *testing.T) (*Device, *loads) {
	t.Helper()
	var l *loads
	d := openSim(t, func(d driver.Device) driver.Device { l = &loads{Device: d}; return l })
	return d, l
}

func filesIn(t *testing.T, dir string) (n int) {
	t.Helper()
	ok(t, filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			n++
		}
		return err
	}))
	return n
}

// A later run loads what an earlier one built, without building it.
func TestBuiltKernelsAreKept(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(knob.KernelCache.Name(), dir)
	ops := []*kernels.PointOp{kernels.Exp, group(t, kernels.Exp, kernels.Tanh), group(t, kernels.Tanh, kernels.Exp)}
	run := func() [][]byte {
		t.Helper()
		d, l := openNoting(t)
		for _, op := range ops {
			_, err := d.Func(unary(t, d, op))
			ok(t, err)
		}
		return l.texts
	}
	built := run()
	if n := filesIn(t, dir); len(built) != len(ops) || n != len(ops) {
		t.Fatalf("%d kernels were loaded and %d kept; want %d", len(built), n, len(ops))
	}
	if again := run(); !slices.EqualFunc(built, again, bytes.Equal) {
		t.Error("what was kept is not what was built")
	}

	d, l := openNoting(t)
	im, err := d.image(kernels.Build(unary(t, d, kernels.Neg)))
	ok(t, err)
	for _, op := range ops { // keep another image, which shows whether it is loaded
		d.keep(d.keptKey(unary(t, d, op)), im)
		_, err := d.Func(unary(t, d, op))
		ok(t, err)
	}
	for i, text := range l.texts {
		if !bytes.Equal(text, im.text) {
			t.Errorf("%s was built, though it was kept", ops[i].Name)
		}
	}
}

func TestKeptImagesComeBackWhole(t *testing.T) {
	t.Setenv(knob.KernelCache.Name(), t.TempDir())
	d := openSim(t, nil)
	for i, im := range []image{{"k", []byte("text\nof two lines\n"), 4096, true, true}, {name: "k_2"}} {
		key := fmt.Sprint(i)
		if _, found := d.keptImage(key); found {
			t.Error("found before it was kept")
		}
		d.keep(key, im)
		if got, found := d.keptImage(key); !found || fmt.Sprint(got) != fmt.Sprint(im) {
			t.Errorf("%v came back as %v", im, got)
		}
	}
	d.kept.Put("foreign", []byte("something else"))
	if _, found := d.keptImage("foreign"); found {
		t.Error("a value that is no image was taken")
	}
}

// The key differs in everything that images depend on.
func TestKeysOfKeptImages(t *testing.T) {
	t.Setenv(knob.KernelCache.Name(), t.TempDir())
	d := openSim(t, nil)
	s := unary(t, d, kernels.Exp)
	seen := map[string]bool{}
	old := *d.info
	for _, f := range []driver.Format{driver.FormatKIR, driver.FormatPTX} {
		for _, major := range []int{8, 9} {
			for _, minor := range []int{0, 6} {
				info := old
				info.Image, info.Major, info.Minor = f, major, minor
				d.info = &info
				seen[d.keptKey(s)] = true
				seen[d.keptKey(unary(t, d, kernels.Neg))] = true
			}
		}
	}
	d.info = &old
	if len(seen) != 16 {
		t.Errorf("%d keys; want 16", len(seen))
	}
}

// Without the folder, everything still works.
func TestNothingIsKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	ok(t, os.WriteFile(file, nil, 0o600))
	home := t.TempDir()
	for _, c := range []struct{ name, dir, home string }{
		{"off", "off", home}, {"a file", file, home}, {"below a file", filepath.Join(file, "x"), home}, {"no home", "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv(knob.KernelCache.Name(), c.dir)
			for _, v := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData"} {
				t.Setenv(v, c.home)
			}
			d := openSim(t, nil)
			_, err := d.Func(unary(t, d, kernels.Exp))
			ok(t, err)
		})
	}
	if n := filesIn(t, home); n != 0 {
		t.Errorf("%d files in the home folder", n)
	}
	t.Setenv(knob.KernelCache.Name(), "")
	for _, v := range []string{"HOME", "XDG_CACHE_HOME", "LocalAppData"} {
		t.Setenv(v, home)
	}
	d := openSim(t, nil)
	_, err := d.Func(unary(t, d, kernels.Exp))
	ok(t, err)
	if n := filesIn(t, home); n != 1 {
		t.Errorf("%d files in the home folder; want the kernel", n)
	}
}

// A process that racecheck watches does not take the kernels that another one has kept, which are different ones.
func TestKeptImagesAreOfTheTarget(t *testing.T) {
	t.Setenv("TENON_KERNEL_CACHE", t.TempDir())
	d, err := Open(Selector{Kind: Sim})
	ok(t, err)
	d.info.Recovers = false // as a GPU
	s := unary(t, d, kernels.Neg)
	plain := d.keptKey(s)
	t.Setenv("TENON_CHECK_TOOLS", "racecheck")
	if watched := d.keptKey(s); plain == "" || watched == plain {
		t.Errorf("the keys are %q and %q", plain, watched)
	}
	ok(t, d.Close())
}
