package vexec

import (
	"fmt"
	"sync"

	"tenon.dev/internal/kir"
)

// Module holds the kernels of one text.
type Module struct {
	kernels map[string]*Kernel
}

// Kernel is a compiled program. Several goroutines may run it at once.
type Kernel struct {
	// p is the program without what only compilation needs; program returns it whole, for a plan that is made later.
	p       kir.Program
	program func() (*kir.Program, error)
	// widest is the maximum number of elements in a wide value. atomics: it has atomic operations on global memory.
	widest                  int
	atomics                 bool
	argBytes                int
	sharedBytes, localBytes int
	fusable                 bool

	mu    sync.Mutex
	plans [3]*plan
}

// Load parses, verifies and compiles the text of one or more programs.
func Load(text []byte) (*Module, error) {
	kept := string(text) // names in the programs refer to it, so it takes no memory to keep it
	ps, err := kir.Parse(kept)
	if err != nil {
		return nil, err
	}
	m := &Module{kernels: make(map[string]*Kernel, len(ps))}
	for i, p := range ps {
		if err := kir.Verify(p); err != nil {
			return nil, err
		}
		if m.kernels[p.Name] != nil {
			return nil, fmt.Errorf("vexec: the module has two kernels named %s", p.Name)
		}
		k, err := Compile(p)
		if err != nil {
			return nil, err
		}
		k.program = func() (*kir.Program, error) {
			ps, err := kir.Parse(kept)
			if err != nil {
				return nil, err
			}
			return ps[i], nil
		}
		m.kernels[p.Name] = k
	}
	return m, nil
}

// Kernel returns the kernel of the given name.
func (m *Module) Kernel(name string) (*Kernel, bool) {
	k, ok := m.kernels[name]
	return k, ok
}

// Compile compiles a program. It must satisfy kir.Verify and must not change afterwards.
func Compile(p *kir.Program) (*Kernel, error) {
	k := &Kernel{p: *p, fusable: fusable(p), widest: 1, atomics: hasGlobalAtomics(p.Body)}
	k.p.Body, k.p.Values, k.p.Vars, k.p.Tiles, k.p.Tables = nil, nil, nil, nil, nil
	k.program = func() (*kir.Program, error) { return p, nil }
	_, k.argBytes = p.ArgLayout()
	_, k.sharedBytes = sharedLayout(p)
	for _, l := range p.Local {
		k.localBytes += l.Count * l.Type.Size()
	}
	q, wide := optimize(p)
	for _, n := range wide.values {
		k.widest = max(k.widest, n)
	}
	for i := range k.plans {
		if i == singlePlan || i == fusedPlan && k.fusable {
			var err error
			if k.plans[i], err = newPlan(k, q, wide, i); err != nil {
				return nil, err
			}
		}
	}
	return k, nil
}

// The plans of a kernel, for passes of one block, of several blocks, and of one block that is watched.
const (
	singlePlan = iota
	fusedPlan
	watchedPlan
)

// plan returns the plan with the given number. Only a plan that is watched may have to be made: few programs need one.
func (k *Kernel) plan(i int) (*plan, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.plans[i] == nil {
		p, err := k.program()
		if err != nil {
			return nil, err
		}
		q, wide := optimize(p)
		if k.plans[i], err = newPlan(k, q, wide, i); err != nil {
			return nil, err
		}
	}
	return k.plans[i], nil
}

// Info describes what a launch uses: registers per thread (of 4 bytes, on this back end), bytes of static shared memory per block, bytes of
// local memory per thread, and the maximum number of threads per block.
func (k *Kernel) Info() (registers, sharedBytes, localBytes, maxThreads int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.plans[0].pointers {
		if p.scalar == -1 && p.bytes == 0 {
			registers += int(max(p.size*p.count, 4)) / 4
		}
	}
	registers -= k.localBytes / 4
	return max(registers, 1), k.sharedBytes, k.localBytes, k.p.Threads
}

// sharedLayout returns the offsets of the shared arrays and the total size of the static ones. Dynamic shared memory follows them.
func sharedLayout(p *kir.Program) (offsets []int, size int) {
	const align = 16
	for _, s := range p.Shared {
		if s.Count >= 0 {
			offsets = append(offsets, size)
			size = (size + s.Count*s.Type.Size() + align - 1) &^ (align - 1)
		} else {
			offsets = append(offsets, -1)
		}
	}
	for i := range offsets {
		if offsets[i] < 0 {
			offsets[i] = size
		}
	}
	return offsets, size
}
