package agree

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/hostsim"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/knob"
	"tenon.dev/internal/ptx"
)

// machine is an opened device with the kernels of a test.
type machine struct {
	driver.Device
	stream driver.Stream
	funcs  map[string]driver.Func
	// portable leaves out instructions that exist only on exactly this device.
	portable bool
}

func open(t testing.TB, d driver.Driver) *machine {
	t.Helper()
	dev, err := d.Open(0)
	if errors.Is(err, driver.NoDevice) {
		t.Skipf("needs an NVIDIA GPU: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	m := &machine{Device: dev, funcs: map[string]driver.Func{}}
	th := dev.Enter()
	defer th.Leave()
	if m.stream, err = dev.StreamCreate(th, true, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	return m
}

func openGPU(t testing.TB) *machine { return open(t, libcuda.New()) }
func openSim(t testing.TB) *machine { return open(t, hostsim.CPU()) }

func (m *machine) target() ptx.Target {
	return ptx.Target{Major: m.Info().Major, Minor: m.Info().Minor, Arch: !m.portable, Meet: knob.Watched("racecheck")}
}

// load compiles and loads programs, several at a time.
func (m *machine) load(t testing.TB, progs []*kir.Program) {
	t.Helper()
	th := m.Enter()
	defer th.Leave()
	for len(progs) > 0 {
		n := min(64, len(progs))
		text := kir.PrintAll(progs[:n])
		if m.Info().Image == driver.FormatPTX {
			var err error
			if text, err = ptx.Compile(progs[:n], m.target()); err != nil {
				t.Fatal(err)
			}
		}
		mod, err := m.LoadModule(th, text)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range progs[:n] {
			if m.funcs[p.Name], err = m.Function(th, mod, p.Name); err != nil {
				t.Fatal(err)
			}
		}
		progs = progs[n:]
	}
}

// dynamic returns the shared memory that a launch of p requests, and allows it.
func (m *machine) dynamic(th driver.Thread, p *kir.Program, own int) (uint32, error) {
	if m.Info().Image != driver.FormatPTX {
		return uint32(own), nil
	}
	n, err := ptx.DynamicShared(p, m.target())
	if err != nil || n == 0 {
		return uint32(own), err
	}
	return uint32(n + own), m.SetMaxShared(th, m.funcs[p.Name], n+own)
}

// run launches a case once and returns its buffers afterwards.
func (m *machine) run(k kernelCase) ([][]byte, error) {
	th := m.Enter()
	defer th.Leave()
	offsets, size := k.prog.ArgLayout()
	args := make([]byte, size)
	var ptrs []driver.Ptr
	for i, a := range k.args {
		data := a.data
		ptrs = append(ptrs, 0)
		if !a.scalar {
			p, err := m.MemAlloc(th, uint64(max(1, len(a.data))))
			if err != nil {
				return nil, err
			}
			defer m.MemFree(th, p)
			if err := m.CopyHtoD(p, a.data, m.stream); err != nil {
				return nil, err
			}
			data = put(nil, dtype.Uint64, uint64(p))
			ptrs[i] = p
		}
		copy(args[offsets[i]:], data)
	}
	shared, err := m.dynamic(th, k.prog, k.shared)
	if err != nil {
		return nil, err
	}
	l := &driver.Launch{Func: m.funcs[k.prog.Name], Stream: m.stream, Grid: [3]uint32{uint32(k.grid), 1, 1},
		Block: [3]uint32{uint32(k.block), uint32(max(1, k.high[0])), uint32(max(1, k.high[1]))}, Args: args, Shared: shared}
	if err := m.Launch(l); err != nil {
		return nil, err
	}
	if err := m.StreamSynchronize(th, m.stream); err != nil {
		return nil, err
	}
	var out [][]byte
	for i, a := range k.args {
		if a.scalar {
			continue
		}
		b := make([]byte, len(a.data))
		if err := m.CopyDtoH(b, ptrs[i], m.stream); err != nil {
			return nil, err
		}
		out = append(out, b)
	}
	return out, m.StreamSynchronize(th, m.stream)
}

// differ describes the first elements in which two buffers of type t differ; all NaNs count as equal.
func differ(t kir.Type, a, b []byte) string {
	if bytes.Equal(a, b) {
		return ""
	}
	n, text := t.Size(), ""
	count := 0
	for i := 0; i < len(a); i += n {
		x, y := a[i:i+n], b[i:i+n]
		if bytes.Equal(x, y) || isNaN(t, x) && isNaN(t, y) {
			continue
		}
		if count++; count <= 3 {
			text += fmt.Sprintf(" [%d] simulator %x GPU %x;", i/n, bits(x), bits(y))
		}
	}
	if count == 0 {
		return ""
	}
	return fmt.Sprintf("%d of %d differ:%s", count, len(a)/n, text)
}

func bits(x []byte) (v uint64) {
	for i := len(x) - 1; i >= 0; i-- {
		v = v<<8 | uint64(x[i])
	}
	return v
}

func isNaN(t kir.Type, x []byte) bool {
	switch v := bits(x); t {
	case dtype.Float16:
		return v&0x7fff > 0x7c00
	case dtype.BFloat16:
		return v&0x7fff > 0x7f80
	case dtype.Float32:
		return v&0x7fffffff > 0x7f800000
	case dtype.Float64:
		return math.IsNaN(math.Float64frombits(v))
	}
	return false
}

// allCases lists every launch that the back ends must agree on, in the same order and with the same data each time.
func allCases() []kernelCase {
	rng := rand.New(rand.NewPCG(7, 11))
	var cs []kernelCase
	for _, c := range pointCases() {
		cs = append(cs, c.launch(rng))
	}
	cs = append(cs, threadCases(rng)...)
	return cs
}

// operandsOf names what element i of the first buffer was computed from, for elementwise cases.
func operandsOf(k kernelCase, text string) string {
	var i int
	if _, err := fmt.Sscanf(text[max(0, indexOf(text, "[")):], "[%d]", &i); err != nil {
		return ""
	}
	s := ""
	for _, a := range k.args[1:] {
		if n := a.t.Size(); !a.scalar && (i+1)*n <= len(a.data) {
			s += fmt.Sprintf(" %x", bits(a.data[i*n:(i+1)*n]))
		}
	}
	return " operands" + s
}

func indexOf(s, sub string) int { return bytes.Index([]byte(s), []byte(sub)) }

// TestBackEndsAgree runs every case on the simulator and on the GPU and compares all buffers bit for bit.
func TestBackEndsAgree(t *testing.T) {
	gpu := openGPU(t)
	sim := openSim(t)
	cs := allCases()
	var progs []*kir.Program
	for _, c := range cs {
		if err := kir.Verify(c.prog); err != nil {
			t.Fatalf("%s: %v", c.prog.Name, err)
		}
		progs = append(progs, c.prog)
	}
	gpu.load(t, progs)
	sim.load(t, progs)
	bad := 0
	for _, c := range cs {
		want, err := sim.run(c)
		if err != nil {
			t.Errorf("%s on the simulator: %v", c.prog.Name, err)
			continue
		}
		got, err := gpu.run(c)
		if err != nil {
			t.Fatalf("%s on the GPU: %v", c.prog.Name, err)
		}
		j := 0
		for _, a := range c.args {
			if a.scalar {
				continue
			}
			if text := differ(a.t, want[j], got[j]); text != "" {
				if bad++; bad <= 200 {
					t.Errorf("%s, buffer %d: %s%s", c.prog.Name, j, text, operandsOf(c, text))
				}
			}
			j++
		}
	}
	t.Logf("%d kernels agree, %d buffers differ", len(cs), bad)
}

// TestSimulatorRunsEveryCase runs the cases of TestBackEndsAgree without a GPU.
func TestSimulatorRunsEveryCase(t *testing.T) {
	sim := openSim(t)
	cs := allCases()
	var progs []*kir.Program
	for _, c := range cs {
		if err := kir.Verify(c.prog); err != nil {
			t.Fatalf("%s: %v", c.prog.Name, err)
		}
		progs = append(progs, c.prog)
	}
	sim.load(t, progs)
	for _, c := range cs {
		if _, err := sim.run(c); err != nil {
			t.Errorf("%s: %v", c.prog.Name, err)
		}
	}
}

// TestDifferenceIsSeen plants differences and checks that differ finds them.
func TestDifferenceIsSeen(t *testing.T) {
	a := put(put(nil, dtype.Float32, 0x7fc00000), dtype.Float32, 0x3f800000)
	b := put(put(nil, dtype.Float32, 0xffffffff), dtype.Float32, 0x3f800000)
	if text := differ(dtype.Float32, a, b); text != "" {
		t.Errorf("two NaNs differ: %s", text)
	}
	if differ(dtype.Uint32, a, b) == "" {
		t.Error("different integers agree")
	}
	b[4] ^= 1
	if text := differ(dtype.Float32, a, b); !bytes.Contains([]byte(text), []byte("1 of 2 differ: [1]")) {
		t.Errorf("one changed bit: %q", text)
	}
}
