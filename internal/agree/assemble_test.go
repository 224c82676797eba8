package agree

import (
	"bytes"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
)

// assembler returns the path of ptxas, which .ci/ptxas.sh fetches.
func assembler(t *testing.T) string {
	if path, err := filepath.Abs("../../.tools/ptxas"); err == nil {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path, err := exec.LookPath("ptxas")
	if err != nil {
		t.Skip("no ptxas: run .ci/ptxas.sh")
	}
	return path
}

// assemble runs ptxas on text and returns its output about registers and spills.
func assemble(t *testing.T, as string, target ptx.Target, text []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "all.ptx")
	if err := os.WriteFile(file, text, 0o666); err != nil {
		t.Fatal(err)
	}
	arch := fmt.Sprintf("sm_%d%d", target.Major, target.Minor)
	if target.Arch {
		arch += "a"
	}
	out, err := exec.Command(as, "-v", "-arch", arch, "-o", os.DevNull, file).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%.4000s", arch, err, out)
	}
	return string(out)
}

// withArch returns the targets and, if ptxas knows it, sm_90a.
func withArch(as string, targets ...ptx.Target) []ptx.Target {
	if help, err := exec.Command(as, "--help").Output(); err == nil && bytes.Contains(help, []byte("sm_90a")) {
		return append(slices.Clone(targets), ptx.Target{Major: 9, Arch: true})
	}
	return targets
}

var targets = []ptx.Target{{Major: 7, Minor: 5}, {Major: 8}, {Major: 9}}

// shareOf returns the kernels that are assembled for target i of n: all with -long, otherwise every n-th one.
func shareOf(progs []*kir.Program, i, n int) []*kir.Program {
	if *longFlag {
		return progs
	}
	var out []*kir.Program
	for j, p := range progs {
		if j%n == i {
			out = append(out, p)
		}
	}
	return out
}

// TestProductsAssemble assembles the products: all of them for one compute capability, those with untransposed operands for the others.
// None may spill if its sums are held in the matrix units.
func TestProductsAssemble(t *testing.T) {
	as := assembler(t)
	targets := withArch(as, targets...)
	used, spill := regexp.MustCompile(`Used .*`), regexp.MustCompile(`[1-9]\d* bytes spill`)
	for i, q := range products() {
		p, err := q.build()
		if err != nil {
			t.Fatal(err)
		}
		for j, target := range targets {
			if !*longFlag && i%len(targets) != j {
				continue
			}
			if target.Major != 8 && !target.Arch && (q.transA || q.transB) {
				continue
			}
			text, err := ptx.Compile([]*kir.Program{p}, target)
			if err != nil {
				t.Fatal(err)
			}
			said := assemble(t, as, target, text)
			shared, err := ptx.DynamicShared(p, target)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%s %v: %d bytes of PTX, %d dynamic shared, %s", q.name(), target, len(text), shared, used.FindString(said))
			if s := spill.FindString(said); s != "" && target.Major > 7 {
				t.Errorf("%s: %s", q.name(), s)
			}
		}
	}
}

func TestEveryOperationAssembles(t *testing.T) {
	as := assembler(t)
	var progs []*kir.Program
	for _, c := range pointCases() {
		progs = append(progs, c.prog)
	}
	for _, c := range threadCases(rand.New(rand.NewPCG(1, 2))) {
		progs = append(progs, c.prog)
	}
	for i, target := range targets {
		progs := shareOf(progs, i, len(targets))
		text, err := ptx.Compile(progs, target)
		if err != nil {
			t.Fatal(err)
		}
		assemble(t, as, target, text)
		t.Logf("sm_%d%d: %d kernels, %d bytes of PTX", target.Major, target.Minor, len(progs), len(text))
	}
}

// assembleKernels assembles every each-th of the kernels that were built, sorted by name. A few wide ones spill some bytes; none may spill
// more.
func assembleKernels(t *testing.T, lib *library, each int) {
	t.Helper()
	as := assembler(t)
	var progs []*kir.Program
	for i, name := range slices.Sorted(maps.Keys(lib.names)) {
		if i%each == 0 {
			progs = append(progs, lib.programs[lib.names[name]])
		}
	}
	for part := range slices.Chunk(progs, 150) {
		text, err := ptx.Compile(part, ptx.Target{Major: 9})
		if err != nil {
			t.Fatal(err)
		}
		if s := spilled(assemble(t, as, ptx.Target{Major: 9}, text)); s != "" {
			t.Error(s)
		}
	}
	t.Logf("%d of %d kernels assembled for sm_90", len(progs), len(lib.programs))
}

var spills = regexp.MustCompile(`Function properties for (\S+)\s.*?(\d+) bytes spill stores`)

// spilled returns the assembler's output about a kernel that spills more than 32 bytes. Small spills depend on the assembler's version: in
// the kernels that sort, ptxas 11.8 spills nothing, and 13.0 spills 16 bytes on sm_80.
func spilled(text string) string {
	for _, m := range spills.FindAllStringSubmatch(text, -1) {
		if n, err := strconv.Atoi(m[2]); err != nil || n > 32 {
			return m[1] + ": " + m[2] + " bytes spill stores"
		}
	}
	return ""
}

// gathered returns an Issuer that builds the kernels that it is to launch, and the list that it appends them to.
func gathered() (*builds, *[]*kir.Program) {
	seen := map[string]bool{}
	var progs []*kir.Program
	return &builds{index32: 1<<31 - 1, f: func(s *kernels.Spec) error {
		p, err := kernels.Build(s).Program()
		if err == nil && !seen[p.Name] {
			seen[p.Name] = true
			progs = append(progs, p)
		}
		return err
	}}, &progs
}

// assembleAll assembles kernels for all targets.
func assembleAll(t *testing.T, as string, progs []*kir.Program) {
	t.Helper()
	for i, target := range targets {
		progs := shareOf(progs, i, len(targets))
		text, err := ptx.Compile(progs, target)
		if err != nil {
			t.Fatal(err)
		}
		if s := spilled(assemble(t, as, target, text)); s != "" {
			t.Error(s)
		}
		t.Logf("sm_%d%d: %d kernels, %d bytes of PTX", target.Major, target.Minor, len(progs), len(text))
	}
}

// TestCompactionsAssemble assembles the kernels whose result length depends on the data.
func TestCompactionsAssemble(t *testing.T) {
	as := assembler(t)
	is, progs := gathered()
	o := func(t dtype.DType, shape ...int) kernels.Operand {
		return kernels.Operand{Ptr: 1 << 20, DType: t, Shape: shape, Stride: []int{1, 100, 7, 100_000, 3}[:len(shape)]}
	}
	check := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, index32 := range []int{1<<31 - 1, 1} {
		is.index32 = index32
		for _, dt := range []dtype.DType{dtype.Bool, dtype.Float16, dtype.Int64, dtype.Float32, dtype.Complex128} {
			for _, shape := range [][]int{{100}, {5, 4, 7, 3, 2}} {
				c := kernels.Compaction{Mask: o(dt, shape...), Starts: o(dtype.Int64, 2)}
				check(c.Count(is))
				check(c.Places(is, o(dtype.Int64, 50, len(shape))))
				check(c.Take(is, o(dt, 50), o(dt, shape...)))
				check(c.Spread(is, o(dt, shape...), o(dt, shape...), o(dt, 50)))
			}
			if !dt.IsComplex() {
				check((&kernels.Unique{X: o(dt, 100), Order: o(dtype.Int64, 100), Heads: o(dtype.Bool, 100)}).Sort(is))
			}
		}
		check((&kernels.Compaction{Mask: o(dtype.Bool, 100), Starts: o(dtype.Int64, 2)}).Ranks(is, o(dtype.Int64, 100),
			o(dtype.Int64, 100)))
		check(kernels.RunningSums(is, o(dtype.Int64, 100), o(dtype.Int32, 100)))
		check(kernels.RepeatIndex(is, o(dtype.Int64, 100), o(dtype.Int64, 100)))
		check(kernels.FlatIndex(is, kernels.Operand{}, o(dtype.Int64, 2, 50), []int{3, 4}))
		check(kernels.FlatIndex(is, o(dtype.Int64, 50), o(dtype.Int64, 2, 50), []int{3, 4}))
	}
	assembleAll(t, as, *progs)
}

// TestSortsAssemble assembles the kernels that sort indexes and fold by them.
func TestSortsAssemble(t *testing.T) {
	as := assembler(t)
	is, progs := gathered()
	for _, width := range []int{1 << 10, 8, 1} {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Complex64} {
			is.index32 = 1<<31 - 1
			if width == 1 {
				is.index32 = 1
			}
			o := func(t dtype.DType, stride ...int) kernels.Operand {
				return kernels.Operand{Ptr: 1 << 20, DType: t, Shape: []int{100, width}, Stride: stride}
			}
			for _, index := range []kernels.Operand{o(dtype.Int64, 1, 0), o(dtype.Int64, width, 1)} {
				for _, size := range []int{20, 50, 100, 200} { // of 5 to 8 bits
					dst := kernels.Indexed{Operand: o(dt, 0, 1), Step: width, Size: size}
					if err := kernels.ScatterAdd(is, dst, index, o(dt, width, 1), 0); err != nil {
						t.Fatal(err)
					}
				}
			}
		}
	}
	assembleAll(t, as, *progs)
}

// builds is an Issuer that passes specifications on and launches nothing.
type builds struct {
	l       kernels.Launch
	f       func(s *kernels.Spec) error
	index32 int
}

func (b *builds) NewLaunch() *kernels.Launch {
	b.l = kernels.Launch{}
	return &b.l
}
func (b *builds) Issue(l *kernels.Launch) error { return b.f(&l.Spec) }
func (b *builds) Workspace(int) (uint64, error) { return 1 << 30, nil }
func (b *builds) Limits() *kernels.Limits {
	return &kernels.Limits{Multiprocessors: 132, MaxThreadsPerSM: 2048, SharedPerBlock: 227 << 10}
}
func (b *builds) Index32() int                   { return b.index32 }
func (b *builds) Memset(uint64, byte, int) error { return nil }
