package sanitize

import (
	"encoding/binary"
	"flag"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/libcuda"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
	"tenon.dev/kernel"
)

// planted names the bug that this process was started to run.
var planted = flag.String("planted", "", "run the kernel with this bug, under a sanitizer")

// here returns the caller's line.
func here() int {
	_, _, line, _ := runtime.Caller(1)
	return line
}

// bug is a kernel of one block of 32 threads over buffers of 32 float32 elements: out, which was written, and in, which was not.
type bug struct {
	tool string
	// says is what the tool reports of it.
	says string
	// build returns the program and the line of the bug.
	build func() (p *kir.Program, line int, err error)
}

func program(name string, f func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value)) (*kir.Program, error) {
	return kernel.Build(name, func(k *kernel.Builder) {
		k.Threads(32)
		out, in := k.Buffer("out", dtype.Float32), k.Buffer("in", dtype.Float32)
		f(k, out, in, k.ThreadIdx(kernel.X))
	}).Program()
}

var bugs = map[string]bug{
	"OutOfBounds": {"memcheck", "Invalid __global__ write of size 4 bytes", func() (p *kir.Program, line int, err error) {
		p, err = program("out_of_bounds", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			line = here() + 1
			out.Store(tid.Add(tid.Like(1)), tid.Convert(dtype.Float32)) // the last thread's is the element after the last
		})
		return p, line, err
	}},
	"Race": {"racecheck", "Race reported between", func() (p *kir.Program, line int, err error) {
		p, err = program("race", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.Threads(64)
			s := k.Shared("s", dtype.Float32, 64)
			line = here() + 1
			s.Store(tid, tid.Convert(dtype.Float32))
			// A barrier is missing here.
			v := s.Load(tid.Like(63).Sub(tid))
			k.If(tid.Lt(tid.Like(32)), func() { out.Store(tid, v) })
		})
		return p, line, err
	}},
	"Uninitialised": {"initcheck", "Uninitialized __global__ memory read of size 4 bytes", func() (p *kir.Program, line int, err error) {
		p, err = program("uninitialised", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			line = here() + 1
			v := in.Load(tid)
			out.Store(tid, v)
		})
		return p, line, err
	}},
	"DivergentBarrier": {"synccheck", "Barrier error detected. Divergent thread(s)", func() (p *kir.Program, line int, err error) {
		p, err = program("divergent_barrier", func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.If(tid.Lt(tid.Like(16)), func() { out.Store(tid, tid.Convert(dtype.Float32)) })
			line = here() + 1
			k.Barrier()
			out.Store(tid, tid.Convert(dtype.Float32).Neg())
		})
		if err == nil {
			diverge(p)
		}
		return p, line, err
	}},
}

// diverge moves the barrier into the branch before it, which the builder refuses to make.
func diverge(p *kir.Program) {
	body := p.Body
	at := slices.IndexFunc(body.Instrs, func(in *kir.Instr) bool { return in.Op == kir.OpBarrier })
	branch := body.Instrs[at-1-slices.IndexFunc(reversed(body.Instrs[:at]), func(in *kir.Instr) bool { return in.Op == kir.OpIf })]
	branch.Blocks[0].Instrs = append(branch.Blocks[0].Instrs, body.Instrs[at])
	body.Instrs = slices.Delete(body.Instrs, at, at+1)
}

func reversed(ins []*kir.Instr) []*kir.Instr {
	ins = slices.Clone(ins)
	slices.Reverse(ins)
	return ins
}

// TestVerifierRefusesDivergence says why the last bug is made behind the builder's back.
func TestVerifierRefusesDivergence(t *testing.T) {
	p, _, err := bugs["DivergentBarrier"].build()
	if err != nil {
		t.Fatal(err)
	}
	if err := kir.Verify(p); err == nil {
		t.Error("the verifier takes a barrier that half of a warp skips")
	}
}

// TestPlanted is the other half of TestFindsPlantedBugs: it runs one kernel with a bug.
func TestPlanted(t *testing.T) {
	if *planted == "list" {
		for name, b := range bugs {
			fmt.Printf("%s:%s\n", b.tool, name)
		}
		return
	}
	b, ok := bugs[*planted]
	if !ok {
		t.Skip("runs under a sanitizer, in a process that TestFindsPlantedBugs starts")
	}
	p, line, err := b.build()
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("planted at planted_test.go:%d\n", line)
	dev, err := libcuda.New().Open(0)
	if err != nil {
		t.Fatal(err)
	}
	// What the device says afterwards depends on the sanitizer; the finding is what counts.
	if err := run(dev, p); err != nil {
		fmt.Println("the kernel's run ended with:", err)
	}
	dev.Close()
}

// run launches p once.
func run(dev driver.Device, p *kir.Program) error {
	th := dev.Enter()
	defer th.Leave()
	text, err := ptx.Compile([]*kir.Program{p}, ptx.Target{Major: dev.Info().Major, Minor: dev.Info().Minor})
	if err != nil {
		return err
	}
	m, err := dev.LoadModule(th, text)
	if err != nil {
		return err
	}
	f, err := dev.Function(th, m, p.Name)
	if err != nil {
		return err
	}
	s, err := dev.StreamCreate(th, true, 0)
	if err != nil {
		return err
	}
	var args []byte
	for i := range 2 {
		b, err := dev.MemAlloc(th, 128)
		if err != nil {
			return err
		}
		if i == 0 {
			if err := dev.Memset(b, 0, 4, 32, s); err != nil {
				return err
			}
		}
		args = binary.LittleEndian.AppendUint64(args, uint64(b))
	}
	if err := dev.Launch(&driver.Launch{Func: f, Stream: s, Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{uint32(p.Threads), 1, 1}, Args: args}); err != nil {
		return err
	}
	return dev.StreamSynchronize(th, s)
}
