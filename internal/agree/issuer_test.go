package agree

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"sync"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/kernels"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
)

// errRefused is returned if a kernel cannot be built for the requested types.
var errRefused = errors.New("no such kernel")

// library holds the programs of all issued kernels, by what they were specialised for.
type library struct {
	programs map[kernels.Spec]*kir.Program
	names    map[string]kernels.Spec
}

func newLibrary() *library {
	return &library{programs: map[kernels.Spec]*kir.Program{}, names: map[string]kernels.Spec{}}
}

// program returns the kernel of s; the error is errRefused if the operation does not support those types.
func (l *library) program(s *kernels.Spec) (p *kir.Program, err error) {
	if p := l.programs[*s]; p != nil {
		return p, nil
	}
	defer func() {
		if r := recover(); r != nil {
			p, err = nil, fmt.Errorf("%w: the builder panics: %v", errRefused, r)
		}
	}()
	if p, err = kernels.Build(s).Program(); err != nil {
		return nil, fmt.Errorf("%w: %v", errRefused, err)
	}
	if other, ok := l.names[p.Name]; ok {
		return nil, fmt.Errorf("two kernels are named %s: %+v and %+v", p.Name, other, *s)
	}
	l.programs[*s], l.names[p.Name] = p, *s
	return p, nil
}

// step is a recorded launch or, without a program, a recorded memset.
type step struct {
	spec        kernels.Spec
	prog        *kir.Program
	grid, block [3]uint32
	shared      uint32
	args        []byte
	ptr         uint64
	fill        byte
	n           int
}

// recorder is an Issuer that records the launches it is asked for, for memory with given addresses.
type recorder struct {
	lib     *library
	limits  kernels.Limits
	index32 int
	// next and end bound the memory left for workspaces.
	next, end uint64
	launch    kernels.Launch
	steps     []step
}

func (r *recorder) NewLaunch() *kernels.Launch {
	r.launch.Reset()
	return &r.launch
}

func (r *recorder) Issue(l *kernels.Launch) error {
	p, err := r.lib.program(&l.Spec)
	if err != nil {
		return err
	}
	if _, size := p.ArgLayout(); size != len(l.Args) {
		return fmt.Errorf("%s: %d bytes of arguments where the kernel has %d", p.Name, len(l.Args), size)
	}
	r.steps = append(r.steps, step{spec: l.Spec, prog: p, grid: l.Grid, block: l.Block, shared: l.Shared, args: slices.Clone(l.Args)})
	return nil
}

func (r *recorder) Workspace(n int) (uint64, error) {
	at := r.next
	r.next += uint64(n+511) &^ 511
	if r.next > r.end {
		return 0, fmt.Errorf("%d bytes of workspace are not left", n)
	}
	return at, nil
}

func (r *recorder) Limits() *kernels.Limits { return &r.limits }
func (r *recorder) Index32() int            { return r.index32 }
func (r *recorder) Memset(ptr uint64, b byte, n int) error {
	r.steps = append(r.steps, step{ptr: ptr, fill: b, n: n})
	return nil
}

// side is one of two devices whose results must be equal, with one large allocation.
type side struct {
	*machine
	name  string
	arena driver.Ptr
	// mu guards the machine's table of functions.
	mu     sync.Mutex
	shared map[string]uint32
	// failed holds the reasons why programs could not be loaded.
	failed map[string]error
	// special counts products that use instructions of exactly this device.
	special int
}

func newSide(m *machine, name string, arena int) (*side, error) {
	th := m.Enter()
	defer th.Leave()
	p, err := m.MemAlloc(th, uint64(arena))
	return &side{machine: m, name: name, arena: p, shared: map[string]uint32{}, failed: map[string]error{}}, err
}

// image returns programs in the format that the device loads.
func (s *side) image(progs []*kir.Program) ([]byte, error) {
	if s.Info().Image != driver.FormatPTX {
		return kir.PrintAll(progs), nil
	}
	text, err := ptx.Compile(progs, s.target())
	s.mu.Lock()
	s.special += bytes.Count(text, []byte("wgmma.mma_async"))
	s.mu.Unlock()
	return text, err
}

// prepare loads programs that are not loaded yet, several at a time and on several threads. Failures are recorded in failed.
func (s *side) prepare(progs []*kir.Program, workers int) {
	const together = 24
	progs = slices.DeleteFunc(progs, func(p *kir.Program) bool { return s.funcs[p.Name] != 0 || s.failed[p.Name] != nil })
	sem := make(chan struct{}, workers)
	var wg sync.WaitGroup
	for part := range slices.Chunk(progs, together) {
		sem <- struct{}{}
		wg.Go(func() {
			defer func() { <-sem }()
			if s.loadPart(part) == nil {
				return
			}
			for i, p := range part { // one at a time, to find the one that fails
				if err := s.loadPart(part[i : i+1]); err != nil {
					s.mu.Lock()
					s.failed[p.Name] = err
					s.mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
}

func (s *side) loadPart(progs []*kir.Program) error {
	th := s.Enter()
	defer th.Leave()
	text, err := s.image(progs)
	if err != nil {
		return err
	}
	mod, err := s.LoadModule(th, text)
	if err != nil {
		return fmt.Errorf("%s and %d others: %w", progs[0].Name, len(progs)-1, err)
	}
	for _, p := range progs {
		f, err := s.Function(th, mod, p.Name)
		if err != nil {
			return err
		}
		var shared int
		if s.Info().Image == driver.FormatPTX {
			if shared, err = ptx.DynamicShared(p, s.target()); err != nil {
				return err
			}
			if shared > 0 {
				err = s.SetMaxShared(th, f, shared)
			}
			if err != nil {
				return err
			}
		}
		s.mu.Lock()
		s.funcs[p.Name], s.shared[p.Name] = f, uint32(shared)
		s.mu.Unlock()
	}
	return nil
}

// run launches steps in order and waits for them. It does nothing if the program of one of them could not be loaded.
func (s *side) run(th driver.Thread, steps []step) error {
	for _, st := range steps {
		if st.prog != nil && s.failed[st.prog.Name] != nil {
			return nil
		}
	}
	for i := range steps {
		st := &steps[i]
		if st.prog == nil {
			if err := s.Memset(driver.Ptr(st.ptr), uint32(st.fill), 1, uint64(st.n), s.stream); err != nil {
				return err
			}
			continue
		}
		l := &driver.Launch{Func: s.funcs[st.prog.Name], Stream: s.stream, Grid: st.grid, Block: st.block, Args: st.args,
			Shared: st.shared + s.shared[st.prog.Name]}
		if err := s.Launch(l); err != nil {
			return fmt.Errorf("%s: %w", st.prog.Name, err)
		}
	}
	return s.StreamSynchronize(th, s.stream)
}
