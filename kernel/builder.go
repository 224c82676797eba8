// Package kernel is a language for writing GPU kernels in Go: Go code calls a Builder, which records one SPMD program for both the GPU and
// the simulator. It must not depend on how the program is compiled or launched. It is experimental: its API may change.
//
// The Launch method of an Exec of package tenon runs a kernel. The examples show an element-wise kernel and one with tiles. Package kmath
// has the mathematical functions.
//
// A mistake, such as operands of different types or a value used outside its region, does not panic. The first one is kept with its source
// line and returned by [Kernel.Program], and so by the first launch. Only the use of something that belongs to a finished kernel, outside
// of Build, panics, with a *tenon.Error.
package kernel

import (
	"fmt"
	"runtime"
	"slices"
	"strings"

	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/internal/kir"
	"tenon.dev/internal/stack"
)

// Kernel is a finished program, or the first mistake made while building it.
type Kernel struct {
	prog *kir.Program
	err  error
}

// Build calls f with a new Builder and returns the program it records. The name may contain letters, digits and underscores.
func Build(name string, f func(k *Builder)) *Kernel {
	b := empty()
	b.prog.Name, b.prog.Threads, b.prog.Body = name, 1024, &kir.Block{}
	b.block = b.prog.Body
	defer func() { b.ended = true }()
	if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_") != "" {
		b.fail("kernel name %q may hold only letters, digits and underscores", name)
	}
	if f == nil {
		b.fail("the function that builds kernel %s is nil; give it one", name)
	} else {
		b.record(f)
	}
	if b.err != nil {
		return &Kernel{err: b.err}
	}
	if err := kir.Verify(b.prog); err != nil {
		return &Kernel{err: b.mistake(err)}
	}
	return &Kernel{prog: b.prog}
}

// mistake is err, which the verifier returned, as fail makes errors. One that belongs to no line gets that of Build's call.
func (b *Builder) mistake(err error) error {
	e := *err.(*fault.Error)
	e.Op = "kernel " + b.prog.Name
	e.Msg = strings.TrimPrefix(e.Msg, e.Op+": ")
	at := slices.Index(b.prog.Locs, kir.Loc{File: e.File, Line: e.Line})
	if e.Line == 0 {
		at = b.loc()
	}
	e.File, e.Line = b.place(at)
	return &e
}

// record calls f. A panic of stray in f, about a value that does not belong to b, becomes b's error.
func (b *Builder) record(f func(k *Builder)) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *fault.Error:
			if r.Op != astray {
				panic(r)
			}
			if b.err == nil {
				r.Op = "kernel " + b.prog.Name
				b.err = r
			}
		default:
			panic(r)
		}
	}()
	f(b)
}

// astray is the Op of errors that belong to no kernel.
const astray = "kernel"

// stray panics with an error at the caller's line.
func stray(msg string) {
	b := empty()
	e := fault.New(fault.Invalid, "%s", msg)
	e.Op = astray
	e.File, e.Line = b.place(b.loc())
	panic(e)
}

// own rejects the Builder of a zero value, and one whose kernel is finished.
func (b *Builder) own() {
	switch {
	case b == nil || b.prog == nil:
		stray("a value, variable or memory of the kernel is a zero value; use what the kernel's Builder returned")
	case b.ended:
		stray("the Builder, value, variable, tile or memory belongs to kernel " + b.prog.Name + ", whose function has ended; " +
			"use it in that function only")
	}
}

// mine rejects what, which the builder of made, if b did not make it.
func (b *Builder) mine(what string, of *Builder) {
	if b.own(); of == b {
		return
	}
	if of == nil || of.prog == nil {
		of.own()
	}
	stray("the " + what + " belongs to kernel " + of.prog.Name + ", not to this one; make it with this one's Builder")
}

// Program returns the recorded program, which Launch uses, or the first mistake made while building it.
//
//tenon:internal the runtime takes the program; users are told the mistake
func (k *Kernel) Program() (*kir.Program, error) {
	if k == nil || k.prog == nil && k.err == nil {
		return nil, fault.New(fault.Invalid, "the kernel is nil or a zero value; use one that Build returned")
	}
	return k.prog, k.err
}

// Builder records a program. It is valid only during the call of Build's function.
type Builder struct {
	prog  *kir.Program
	block *kir.Block
	err   error
	locs  map[site]int // the indexes of the lines in prog.Locs
	files []string     // the whole paths of the files of prog.Locs
	// over are the indexes of the calls of ForEach that have ended.
	over []kir.Value
	// bytes maps floating-point values to the integers of 8 bits that they are equal to: all types hold those, so that each conversion
	// starts from the integer.
	bytes map[kir.Value]Value

	parts   map[dtype.DType]Array // see reduced
	counted int                   // the threads of a block that the program relies on so far; 0 for none
	guess   *guess                // that of the innermost Guess whose rare parts are left out
	ended   bool                  // the function has returned
}

// guess is a call of Guess: its block, and the conditions of the rare parts that were left out.
type guess struct {
	block *kir.Block
	conds []Value
}

func empty() *Builder {
	return &Builder{prog: &kir.Program{Locs: []kir.Loc{{}}}, locs: map[site]int{}, files: []string{""},
		bytes: map[kir.Value]Value{}, parts: map[dtype.DType]Array{}}
}

// Value is a typed value of every thread. Values are immutable; see Var for what changes.
type Value struct {
	b  *Builder
	id kir.Value
	t  dtype.DType
}

// Type returns the element type.
func (v Value) Type() dtype.DType { return v.t }

// Builder returns the builder that made v.
func (v Value) Builder() *Builder { return v.b }

// Fail makes a mistake of the program's call that is under way; the first one is the kernel's error. It is for functions that record a part
// of a kernel, and refuse what they are given.
func (b *Builder) Fail(format string, args ...any) { b.fail(format, args...) }

func (b *Builder) fail(format string, args ...any) {
	b.own()
	if b.err != nil {
		return
	}
	e := fault.New(fault.Invalid, format, args...)
	e.Op = "kernel " + b.prog.Name
	e.File, e.Line = b.place(b.loc())
	b.err = e
}

// place returns the file and line of a location that loc returned.
func (b *Builder) place(loc int) (file string, line int) { return b.files[loc], b.prog.Locs[loc].Line }

// loc returns the index of the source location of the first caller outside this package or, if the program called package kmath, of that
// call.
func (b *Builder) loc() int {
	b.own()
	var at path
	stack.Addresses(at[:])
	s, ok := places.of(&at)
	if !ok {
		var pcs path
		s = places.add(&at, pcs[:runtime.Callers(3, pcs[:])])
	}
	if s.line == 0 {
		return 0
	}
	loc, ok := b.locs[s]
	if !ok {
		loc = b.addLoc(s.file, s.line)
		b.locs[s] = loc
	}
	return loc
}

// addLoc keeps only the last two elements of the path, so that images do not depend on the directory of the module.
func (b *Builder) addLoc(file string, line int) int {
	whole, cut := file, len(file)
	for range 2 {
		i := strings.LastIndexByte(file[:cut], '/')
		if i < 0 {
			break
		}
		cut = i
	}
	if cut < len(file) && file[cut] == '/' {
		cut++
	}
	if cut < len(file) {
		file = file[cut:]
	}
	l := kir.Loc{File: file, Line: line}
	for i, o := range b.prog.Locs {
		if o == l {
			return i
		}
	}
	b.prog.Locs, b.files = append(b.prog.Locs, l), append(b.files, whole)
	return len(b.prog.Locs) - 1
}

func (b *Builder) value(t dtype.DType) Value {
	b.own()
	b.prog.Values = append(b.prog.Values, t)
	return Value{b, kir.Value(len(b.prog.Values) - 1), t}
}

func (b *Builder) add(in *kir.Instr) {
	if in.Loc == 0 {
		in.Loc = b.loc()
	}
	b.block.Instrs = append(b.block.Instrs, in)
}

// emit adds an instruction with one result of type res.
func (b *Builder) emit(in *kir.Instr, res dtype.DType) Value {
	v := b.value(res)
	in.Res = []kir.Value{v.id}
	b.add(in)
	return v
}

// ids returns the names of values, which must be b's.
func (b *Builder) ids(vs ...Value) []kir.Value {
	out := make([]kir.Value, len(vs))
	for i, v := range vs {
		b.mine("value", v.b)
		if slices.Contains(b.over, v.id) {
			b.fail("the index of a ForEach is used outside its function, where it may be too large; move the use inside")
		}
		out[i] = v.id
	}
	return out
}

func (b *Builder) param(p kir.Param) int {
	b.own()
	for i := range b.prog.Params {
		if b.prog.Params[i].Name == p.Name {
			b.fail("parameter %q is declared twice; give each a name of its own", p.Name)
		}
	}
	if !p.Type.Valid() || p.Type.IsComplex() {
		b.fail("parameter %q has type %v, which kernels do not have; declare its parts", p.Name, p.Type)
	}
	b.prog.Params = append(b.prog.Params, p)
	return len(b.prog.Params) - 1
}

// Scalar declares a scalar parameter and returns its value.
func (b *Builder) Scalar(name string, t dtype.DType) Value {
	i := b.param(kir.Param{Name: name, Kind: kir.ParamScalar, Type: t})
	return b.emit(&kir.Instr{Op: kir.OpParam, Type: t, Sym: i}, t)
}

// Threads promises that no launch uses more than n threads per block; the default is 1024.
func (b *Builder) Threads(n int) { b.threads(n, b.prog.FixedThreads) }

// FixedThreads promises that every launch uses exactly n threads per block, all in x.
func (b *Builder) FixedThreads(n int) { b.threads(n, true) }

func (b *Builder) threads(n int, fixed bool) {
	if b.own(); b.counted != 0 && n != b.counted {
		b.fail("blocks have %d threads after a BlockSum, BlockMax or BlockMin for %d; call FixedThreads once, before them", n, b.counted)
	}
	b.prog.Threads, b.prog.FixedThreads = n, fixed
}

// Var is a variable that every thread has.
type Var struct {
	b *Builder
	i int
	t dtype.DType
}

// Var declares a variable with an initial value.
func (b *Builder) Var(init Value) Var {
	b.mine("value", init.b)
	v := b.VarOf(init.t)
	v.Set(init)
	return v
}

// VarOf declares a variable whose initial value is undefined.
func (b *Builder) VarOf(t dtype.DType) Var {
	b.own()
	b.prog.Vars = append(b.prog.Vars, t)
	return Var{b, len(b.prog.Vars) - 1, t}
}

// Get returns the variable's value at this point of the program.
func (v Var) Get() Value {
	return v.b.emit(&kir.Instr{Op: kir.OpGet, Type: v.t, Sym: v.i}, v.t)
}

// Set assigns x, which must have the variable's type.
func (v Var) Set(x Value) {
	args := v.b.ids(x)
	if x.t != v.t {
		v.b.fail("a variable of type %v is set to a value of type %v; convert it", v.t, x.t)
		return
	}
	v.b.add(&kir.Instr{Op: kir.OpSet, Type: v.t, Sym: v.i, Args: args})
}

// Axis names a dimension of the grid and of its blocks.
type Axis int

// The axes.
const (
	X Axis = iota
	Y
	Z
)

func (b *Builder) special(s kir.Sub) Value {
	return b.emit(&kir.Instr{Op: kir.OpSpecial, Type: dtype.Int32, Sub: s}, dtype.Int32)
}

// ThreadIdx returns the thread's index in its block, Int32.
func (b *Builder) ThreadIdx(a Axis) Value { return b.special(kir.TidX + kir.Sub(a)) }

// BlockDim returns the block's size in threads, Int32.
func (b *Builder) BlockDim(a Axis) Value { return b.special(kir.NTidX + kir.Sub(a)) }

// BlockIdx returns the block's index in the grid, Int32.
func (b *Builder) BlockIdx(a Axis) Value { return b.special(kir.CtaIDX + kir.Sub(a)) }

// GridDim returns the grid's size in blocks, Int32.
func (b *Builder) GridDim(a Axis) Value { return b.special(kir.NCtaIDX + kir.Sub(a)) }

// LaneID returns the thread's index in its warp of 32, Int32.
func (b *Builder) LaneID() Value { return b.special(kir.LaneID) }

// ForEach runs f for i = 0 … n-1 (n is an Int64 value), one thread per i. The launch needs at least n threads in x, which tenon.Over(n)
// provides; an i without a thread is skipped. i is valid in f alone.
func (b *Builder) ForEach(n Value, f func(i Value)) {
	if f == nil {
		b.fail(noBody)
		return
	}
	if b.mine("value", n.b); n.t != dtype.Int64 {
		b.fail("the count of ForEach is %v; it must be int64: convert it", n.t)
		return
	}
	i := b.BlockIdx(X).MulWide(b.BlockDim(X)).Add(b.ThreadIdx(X).Convert(dtype.Int64))
	b.If(i.Lt(n), func() { f(i) })
	b.over = append(b.over, i.id)
}

const noBody = "a function that records a part of the kernel is nil; give it one"

func (b *Builder) region(f func(), params ...Value) *kir.Block {
	outer := b.block
	blk := &kir.Block{Params: b.ids(params...)}
	b.block = blk
	f()
	b.block = outer
	return blk
}

// If runs then in the threads where cond (Bool) is true.
func (b *Builder) If(cond Value, then func()) { b.IfElse(cond, then, func() {}) }

// Rarely is If for a condition that is nearly always false. See Guess.
func (b *Builder) Rarely(cond Value, then func()) {
	if g := b.guess; g != nil && g.block == b.block && cond.t == dtype.Bool && then != nil {
		b.mine("condition", cond.b)
		g.conds = append(g.conds, cond)
		return
	}
	b.If(cond, then)
}

// Guess returns the values that f returns. It first computes them without the functions that f gives to Rarely. Threads in which one of
// their conditions was true then compute f again, in full. One branch replaces many, and a GPU's assembler can interleave the rest of f,
// which it does not do across branches.
//
// If f calls Rarely, it is called twice, and must record the same computations each time. It must not store, or set Vars that it did not
// declare. In an If or a loop of f, Rarely is If.
func (b *Builder) Guess(f func() []Value) []Value {
	b.own()
	if f == nil {
		b.fail(noBody)
		return nil
	}
	outer := b.guess
	g := &guess{block: b.block}
	b.guess = g
	values := f()
	b.guess = outer
	for _, v := range values {
		b.mine("value", v.b)
	}
	if len(g.conds) == 0 {
		return values
	}
	wrong := g.conds[0]
	for _, c := range g.conds[1:] {
		wrong = wrong.Or(c)
	}
	vars := make([]Var, len(values))
	for i, v := range values {
		vars[i] = b.Var(v)
	}
	b.If(wrong, func() {
		again := f()
		if len(again) != len(vars) {
			b.fail("the function of Guess returns %d values and then %d; it must record the same each time", len(vars), len(again))
			return
		}
		for i, v := range again {
			vars[i].Set(v)
		}
	})
	for i, v := range vars {
		values[i] = v.Get()
	}
	return values
}

// IfElse runs then where cond (Bool) is true, and els elsewhere.
func (b *Builder) IfElse(cond Value, then, els func()) {
	if then == nil || els == nil {
		b.fail(noBody)
		return
	}
	args := b.ids(cond)
	if cond.t != dtype.Bool {
		b.fail("a condition has type %v; compare it to get a bool", cond.t)
		return
	}
	in := &kir.Instr{Op: kir.OpIf, Type: dtype.Bool, Args: args, Loc: b.loc()}
	in.Blocks = []*kir.Block{b.region(then), b.region(els)}
	b.add(in)
}

// For runs body with i = start, start+step, … while i < end. All are Int32 or all Int64; step > 0.
func (b *Builder) For(start, end, step Value, body func(i Value)) {
	b.pipelined(0, start, end, step, body)
}

// ForAhead is For, with the Pipelined loop in the body, if the body has just one, also loading for the next iteration while the rest of the
// body runs. The body must not write what that loop loads. The simulator runs one iteration after the other. On GPUs, tensor maps must
// describe the loads, as LoadMapped says, the inner loop's bounds must not depend on i, and where it loads must not depend on Vars.
//
// If the body ends with its only Each, and the inner loop has one product, the Each runs while the next iteration's products do. For that,
// the Each must round the elements to one type of halves before anything else, and use neither shared memory nor Vars that the body sets;
// nothing before the inner loop may access memory; and the tile must fit in shared memory beside three stages.
func (b *Builder) ForAhead(start, end, step Value, body func(i Value)) {
	b.pipelined(1, start, end, step, body)
}

// Pipelined is For, with the tile loads running stages-1 iterations ahead if the device supports it.
func (b *Builder) Pipelined(stages int, start, end, step Value, body func(i Value)) {
	if stages == 1 { // which is ForAhead's
		stages = 0
	}
	b.pipelined(stages, start, end, step, body)
}

func (b *Builder) pipelined(stages int, start, end, step Value, body func(i Value)) {
	if body == nil {
		b.fail(noBody)
		return
	}
	args := b.ids(start, end, step)
	if start.t != end.t || start.t != step.t || (start.t != dtype.Int32 && start.t != dtype.Int64) {
		b.fail("a loop's start, end and step have types %v, %v, %v; all must be int32 or all int64", start.t, end.t, step.t)
		return
	}
	in := &kir.Instr{Op: kir.OpFor, Type: start.t, Args: args, Imm: uint64(stages), Loc: b.loc()}
	i := b.value(start.t)
	in.Blocks = []*kir.Block{b.region(func() { body(i) }, i)}
	b.add(in)
}

// Loop runs body until Break.
func (b *Builder) Loop(body func()) {
	if body == nil {
		b.fail(noBody)
		return
	}
	in := &kir.Instr{Op: kir.OpLoop, Loc: b.loc()}
	in.Blocks = []*kir.Block{b.region(body)}
	b.add(in)
}

// Break leaves the innermost For or Loop.
func (b *Builder) Break() { b.add(&kir.Instr{Op: kir.OpBreak}) }

// Continue starts the next iteration of the innermost For or Loop.
func (b *Builder) Continue() { b.add(&kir.Instr{Op: kir.OpContinue}) }

// Return ends the thread.
func (b *Builder) Return() { b.add(&kir.Instr{Op: kir.OpReturn}) }

// Barrier waits for all threads of the block. What they wrote to shared and global memory before it is visible after it.
func (b *Builder) Barrier() { b.add(&kir.Instr{Op: kir.OpBarrier}) }

// Fence makes other blocks see this thread's earlier global accesses before its later ones.
func (b *Builder) Fence() { b.add(&kir.Instr{Op: kir.OpFence}) }

// Wait waits for the kernels that precede this one in its stream, or in a graph: until then they may be running, on devices of compute
// capability 9.0 and later, and writing global memory. A kernel that does not call Wait waits at its start. One that does may compute and
// [Buffer.Prefetch] before, and use shared memory, but not read or write global memory, load tiles, assert, or return; and it lets the next
// kernel start in the same way as soon as all of its own blocks run. That helps short kernels that leave most of the device idle. Call Wait
// once, and not in the function of an If or a loop.
func (b *Builder) Wait() { b.add(&kir.Instr{Op: kir.OpWait}) }

// Assert stops the kernel with msg and this line if cond (Bool) is false in any thread. Each %v in msg stands for the next of numbers, at
// most two; a GPU omits them. After a failed Assert the process can no longer use the GPU; the simulated device and the processor continue
// to work.
func (b *Builder) Assert(cond Value, msg string, numbers ...Value) {
	b.add(&kir.Instr{Op: kir.OpAssert, Type: dtype.Bool, Args: b.ids(append([]Value{cond}, numbers...)...), Text: msg})
}

// Clock returns the device clock in cycles, Int64.
func (b *Builder) Clock() Value {
	return b.emit(&kir.Instr{Op: kir.OpClock, Type: dtype.Int64}, dtype.Int64)
}

// String describes the kernel.
func (k *Kernel) String() string {
	if _, err := k.Program(); err != nil {
		return fmt.Sprintf("kernel(%v)", err)
	}
	return k.prog.Name
}
