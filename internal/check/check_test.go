package check

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/checklog"
	"tenon.dev/internal/vexec"
	"tenon.dev/kernel"
)

// bench is a checker with a memory of two buffers.
type bench struct {
	*Checker
	t    *testing.T
	json bytes.Buffer
	mem  map[uint64][]byte
}

// The buffers of a bench: out has 4 KiB and in 8 KiB.
const (
	out = 0x10000
	in  = 0x20000
)

func newBench(t *testing.T) *bench { return newBenchOf(t, Tools...) }

func newBenchOf(t *testing.T, tools ...string) *bench {
	b := &bench{t: t, mem: map[uint64][]byte{out: make([]byte, 4096), in: make([]byte, 8192)}}
	log, err := NewLog(&b.json, nil, tools...)
	if err != nil {
		t.Fatal(err)
	}
	b.Checker = New(log, func(addr, n uint64) bool { return addr == 0x30000 })
	for base, m := range b.mem {
		b.Alloc(base, uint64(len(m)))
	}
	return b
}

func (b *bench) Resolve(addr uint64) ([]byte, uint64, bool) {
	for base, m := range b.mem {
		if addr-base < uint64(len(m)) {
			return m, base, true
		}
	}
	return nil, 0, false
}

// run runs one kernel of blocks blocks of n threads over out and in, as an operation of s.
func (b *bench) run(s *Stream, blocks, n int, f func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value)) {
	b.t.Helper()
	p, err := kernel.Build("k", func(k *kernel.Builder) {
		k.FixedThreads(n)
		f(k, k.Buffer("out", dtype.Int32), k.Buffer("in", dtype.Int32), k.ThreadIdx(kernel.X))
	}).Program()
	if err != nil {
		b.t.Fatal(err)
	}
	k, err := vexec.Compile(p)
	if err != nil {
		b.t.Fatal(err)
	}
	ext := [3]uint32{uint32(n), 1, 1}
	l := b.Launch(s.Enqueue("k"), k, ext)
	defer l.End()
	args := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, out), in)
	// A device would report an error too.
	_ = k.Run(&vexec.Env{Mem: b, Watch: l}, [3]uint32{uint32(blocks), 1, 1}, ext, 0, args)
}

// found returns the findings since the last call and their classes, sorted.
func (b *bench) found() (classes []string, all []*checklog.Finding) {
	b.t.Helper()
	for line := range bytes.Lines(b.json.Bytes()) {
		var e checklog.Line
		if err := json.Unmarshal(line, &e); err != nil {
			b.t.Fatal(err)
		}
		if e.Finding != nil {
			classes, all = append(classes, e.Finding.Class), append(all, e.Finding)
		}
	}
	b.json.Reset()
	slices.Sort(classes)
	return classes, all
}

// expect compares the classes of the findings since the last call.
func (b *bench) expect(what string, want ...string) []*checklog.Finding {
	b.t.Helper()
	got, all := b.found()
	if !slices.Equal(got, want) {
		b.t.Errorf("%s: found %v, want %v", what, got, want)
		for _, f := range all {
			b.t.Logf("%s", textOf(f))
		}
	}
	return all
}

// TestFrames checks that a host stack begins at the program's innermost call and has no frames of the library.
func TestFrames(t *testing.T) {
	var pcs []uintptr
	within := func() { pcs = func() []uintptr { return called().pcs }() }
	kernel.Build("k", func(k *kernel.Builder) { within() }).Program()
	var got []string
	for _, f := range frames(pcs) {
		got = append(got, f.Function)
	}
	const test = "tenon.dev/internal/check.TestFrames"
	if want := []string{test + ".func1", test + ".func2", test, "testing.tRunner"}; !slices.Equal(got, want) {
		t.Errorf("the frames are %q, want %q", got, want)
	}
}

// TestShared plants every kind of mistake with shared memory that lockstep hides, and its repair.
func TestShared(t *testing.T) {
	const n = 64
	type body = func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(), out kernel.Buffer)
	for name, c := range map[string]struct {
		says string
		f    body
	}{
		"read after write": {"a read after a write", func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(),
			out kernel.Buffer) {
			s.Store(tid, tid)
			barrier()
			out.Store(tid, s.Load(tid.Xor(k.I32(1))))
		}},
		"write after read": {"a write after a read", func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(),
			out kernel.Buffer) {
			s.Store(tid, tid)
			k.Barrier()
			v := s.Load(tid.Xor(k.I32(1)))
			barrier()
			s.Store(tid, v)
		}},
		"write after write": {"a write after a write", func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(),
			out kernel.Buffer) {
			s.Store(tid, tid)
			barrier()
			s.Store(k.I32(n-1).Sub(tid), tid)
		}},
		"uniform read": {"a read after a write", func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(),
			out kernel.Buffer) {
			k.If(tid.Eq(k.I32(3)), func() { s.Store(k.I32(0), tid) })
			barrier()
			out.Store(tid, s.Load(k.I32(0)))
		}},
		"atomic and store": {"an atomic after a write", func(k *kernel.Builder, s kernel.Array, tid kernel.Value, barrier func(),
			out kernel.Buffer) {
			k.If(tid.Eq(k.I32(3)), func() { s.Store(k.I32(0), tid) })
			barrier()
			s.Atomic(kernel.AtomicAdd, k.I32(0), tid)
			s.Atomic(kernel.AtomicAdd, k.I32(0), tid)
		}},
	} {
		for _, repaired := range []bool{false, true} {
			b := newBench(t)
			b.run(b.Stream(), 1, n, func(k *kernel.Builder, out, _ kernel.Buffer, tid kernel.Value) {
				s := k.Shared("s", dtype.Int32, n)
				c.f(k, s, tid, func() {
					if repaired {
						k.Barrier()
					}
				}, out)
				k.Barrier()
				k.If(tid.Eq(k.I32(0)), func() { out.Store(tid, s.Load(k.I32(0))) })
			})
			if repaired {
				b.expect(name + ", repaired")
			} else if all := b.expect(name, checklog.Race); len(all) == 1 && (!strings.Contains(all[0].Message, c.says) ||
				all[0].Space != "shared" || all[0].Device[0].Line == 0 || all[0].Other[0].Line == 0) {
				t.Errorf("%s: %s", name, textOf(all[0]))
			}
		}
	}
}

// TestGlobal plants mistakes with global memory in one launch.
func TestGlobal(t *testing.T) {
	type body = func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value)
	global := func(k *kernel.Builder, tid kernel.Value) kernel.Value {
		return k.BlockIdx(kernel.X).Mul(k.I32(32)).Add(tid)
	}
	for name, c := range map[string]struct {
		f    body
		want []string
	}{
		"every thread its own": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(global(k, tid), tid) }, nil},
		"all threads the same": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(tid.Xor(tid), tid) },
			[]string{checklog.Race}},
		"blocks overlap": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			out.Store(tid, tid)
		}, []string{checklog.Race}},
		"blocks meet in atomic": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			out.Store(tid, tid)
			in.Atomic(kernel.AtomicAdd, k.I32(0), tid)
		}, []string{checklog.Uninitialized}},
		"neighbours unordered": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			out.Store(global(k, tid), tid)
			out.Store(global(k, tid), out.Load(global(k, tid.Xor(k.I32(1)))))
		}, []string{checklog.Race, checklog.Race}},
		"neighbours ordered": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			out.Store(global(k, tid), tid)
			k.Barrier()
			v := out.Load(global(k, tid.Xor(k.I32(1))))
			k.Barrier()
			out.Store(global(k, tid), v)
		}, nil},
		"unwritten": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			out.Store(global(k, tid), in.Load(tid))
		}, []string{checklog.Uninitialized}},
		"beyond": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(tid.Add(k.I32(1000)), tid) },
			[]string{checklog.OutOfBounds}},
		"beyond shared": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.Shared("s", dtype.Int32, 31).Store(tid, tid)
		}, []string{checklog.OutOfBounds}},
		"misaligned": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.At(out.Addr().Add(k.U64(2)), dtype.Int32).Store(tid, tid)
		}, []string{checklog.Misaligned}},
		"page-locked": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.If(tid.Eq(k.I32(0)), func() { k.At(k.U64(0x30000), dtype.Int32).Store(k.I32(0), tid) })
		}, nil},
		"bytes of a word": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.At(out.Addr(), dtype.Uint8).Store(global(k, tid), tid.Convert(dtype.Uint8))
		}, nil},
		"bytes that meet": {func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.At(out.Addr(), dtype.Uint8).Store(global(k, tid), tid.Convert(dtype.Uint8))
			k.At(out.Addr(), dtype.Uint8).Store(global(k, tid.Xor(k.I32(1))), tid.Convert(dtype.Uint8))
		}, []string{checklog.Race}},
	} {
		b := newBench(t)
		b.run(b.Stream(), 2, 32, c.f)
		b.expect(name, c.want...)
	}
}

// TestBlocksBegin checks that what an earlier block wrote to shared memory counts as unwritten in the next.
func TestBlocksBegin(t *testing.T) {
	b := newBench(t)
	b.run(b.Stream(), 2, 32, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
		s := k.Shared("s", dtype.Int32, 32)
		k.If(k.BlockIdx(kernel.X).Eq(k.I32(0)), func() { s.Store(tid, tid) })
		k.Barrier()
		out.Store(k.BlockIdx(kernel.X).Mul(k.I32(32)).Add(tid), s.Load(tid))
	})
	if all := b.expect("unwritten shared memory", checklog.Uninitialized); len(all) == 1 &&
		(*all[0].Block != [3]int{1, 0, 0} || all[0].Space != "shared") {
		t.Errorf("%s", textOf(all[0]))
	}
}

// TestUnwrittenShared: a read of shared memory that nobody wrote is no race with a write, and if another thread then writes there, it races
// with that write, whichever tools look.
func TestUnwrittenShared(t *testing.T) {
	for _, c := range []struct{ tools, alone, written []string }{
		{Tools, []string{checklog.Uninitialized}, []string{checklog.Race, checklog.Uninitialized}},
		{[]string{"initcheck", "racecheck"}, []string{checklog.Uninitialized}, []string{checklog.Race, checklog.Uninitialized}},
		{[]string{"racecheck"}, nil, []string{checklog.Race}},
		{[]string{"initcheck"}, []string{checklog.Uninitialized}, []string{checklog.Uninitialized}},
	} {
		for _, written := range []bool{false, true} {
			b := newBenchOf(t, c.tools...)
			b.run(b.Stream(), 2, 32, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
				s := k.Shared("s", dtype.Int32, 32)
				out.Store(k.BlockIdx(kernel.X).Mul(k.I32(32)).Add(tid), s.Load(tid))
				if written {
					s.Store(tid.Xor(k.I32(1)), tid)
				}
			})
			want := c.alone
			if written {
				want = c.written
			}
			for _, f := range b.expect(strings.Join(c.tools, " "), want...) {
				if f.Class == checklog.Race && !strings.Contains(f.Message, "a write after a read") {
					t.Errorf("%s", textOf(f))
				}
			}
		}
	}
}

// TestRaceNamesBoth: the report of a race within a kernel names both threads and their blocks.
func TestRaceNamesBoth(t *testing.T) {
	for name, c := range map[string]struct {
		blocks      int
		f           func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value)
		says, other string
		thread      [3]int
		block       [3]int
	}{
		"blocks": {3, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			k.If(k.BlockIdx(kernel.X).Ge(k.I32(1)), func() { out.Store(tid, tid) })
		}, "by two blocks", ", by thread (0,0,0) in block (1,0,0)", [3]int{0, 0, 0}, [3]int{2, 0, 0}},
		"threads": {1, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
			s := k.Shared("s", dtype.Int32, 32)
			s.Store(tid, tid)
			out.Store(tid, s.Load(k.I32(31).Sub(tid)))
		}, "with no barrier between", ", by thread (31,0,0) in block (0,0,0)", [3]int{0, 0, 0}, [3]int{0, 0, 0}},
	} {
		b := newBench(t)
		b.run(b.Stream(), c.blocks, 32, c.f)
		for _, f := range b.expect(name, checklog.Race) {
			text := textOf(f)
			if !strings.Contains(text, c.says) || !strings.Contains(text, c.other) || f.Thread == nil || *f.Thread != c.thread ||
				*f.Block != c.block {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
}

func store(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { out.Store(tid, tid) }
func load(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) {
	v := out.Load(tid)
	in.Store(tid, v)
}

// TestOrder checks each way in which streams and the host order work, and its absence.
func TestOrder(t *testing.T) {
	for name, c := range map[string]struct {
		order func(b *bench, s, other *Stream)
		want  []string
	}{
		"nothing":          {func(*bench, *Stream, *Stream) {}, []string{checklog.StreamRace}},
		"event":            {func(_ *bench, s, other *Stream) { other.Wait(s.Mark()) }, nil},
		"no event":         {func(_ *bench, s, other *Stream) { other.Wait(nil) }, []string{checklog.StreamRace}},
		"host":             {func(b *bench, s, _ *Stream) { b.Sync(s.Mark()) }, nil},
		"host of no point": {func(b *bench, _, _ *Stream) { b.Sync(nil) }, []string{checklog.StreamRace}},
		"third stream": {func(b *bench, s, other *Stream) {
			x := b.Stream()
			x.Wait(s.Mark())
			x.Enqueue("x")
			other.Wait(x.Mark())
		}, nil},
		"other's past": {func(b *bench, s, other *Stream) { s.Wait(other.Mark()) }, []string{checklog.StreamRace}},
	} {
		b := newBench(t)
		s, other := b.Stream(), b.Stream()
		b.run(s, 1, 32, store)
		c.order(b, s, other)
		b.run(other, 1, 32, load)
		all := b.expect(name, c.want...)
		if len(all) == 1 && (all[0].Kernel != "k" || len(all[0].Stack) == 0 || all[0].Stack[0].File != "check_test.go" ||
			all[0].Other[0].Line == 0) {
			t.Errorf("%s: %s", name, textOf(all[0]))
		}
	}
	b := newBench(t)
	early := b.Stream()
	mark := early.Mark()
	b.run(early, 1, 32, store)
	late := b.Stream()
	late.Wait(mark) // from before the kernel
	b.run(late, 1, 32, store)
	b.expect("an event that was recorded too early", checklog.StreamRace)
}

// TestTransfers checks that copies and fills race and initialise like kernels.
func TestTransfers(t *testing.T) {
	b := newBench(t)
	s, other := b.Stream(), b.Stream()
	b.Fill(s.Enqueue("Memset"), in+100, 5000)
	b.Read(s.Enqueue("CopyDtoH"), in+100, 5000)
	b.expect("what was filled is read")
	b.Read(s.Enqueue("CopyDtoH"), in+99, 5000)
	if all := b.expect("a byte before it", checklog.Uninitialized); len(all) == 1 && all[0].Address != "0x20063" {
		t.Errorf("%s", textOf(all[0]))
	}
	b.Read(s.Enqueue("CopyDtoH2"), in+200, 4901)
	if all := b.expect("a byte after it", checklog.Uninitialized); len(all) == 1 && all[0].Address != "0x213ec" {
		t.Errorf("%s", textOf(all[0]))
	}
	b.Copy(s.Enqueue("CopyDtoD"), out, in+90, 1000) // its first 10 bytes are not written
	b.Read(s.Enqueue("A"), out+10, 990)
	b.expect("what was copied is read")
	b.Read(s.Enqueue("B"), out+9, 1)
	b.expect("what was not written is not by its copy", checklog.Uninitialized)
	b.Copy(s.Enqueue("CopyDtoD"), out+10, out+20, 100)
	b.Copy(s.Enqueue("CopyDtoD"), out, 0x30000, 10) // from memory that the checker does not know
	b.Read(s.Enqueue("C"), out, 900)
	b.expect("overlapping, and from page-locked memory")
	b.Fill(other.Enqueue("Other"), out+500, 4)
	b.expect("another stream's fill", checklog.StreamRace)
	b.Read(s.Enqueue("D"), out+400, 4)
	b.expect("elsewhere")
	b.Read(s.Enqueue("E"), out+500, 4)
	b.expect("a read of it", checklog.StreamRace)
	b.Sync(s.Mark())
	b.Sync(other.Mark())
	b.Fill(other.Enqueue("F"), in, 8192) // whole pages
	b.Fill(s.Enqueue("G"), in, 8192)
	b.expect("whole pages", checklog.StreamRace)
	b.run(other, 1, 32, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { in.Store(tid, tid) })
	b.expect("a kernel on a page that was filled", checklog.StreamRace)
	b.Read(b.Stream().Enqueue("H"), 0x999, 4)
	b.expect("memory that is not there", checklog.OutOfBounds)
	b.Fill(b.Stream().Enqueue("I"), 0x30000, 4)
	b.expect("memory that the checker is not told of")
}

// TestLives checks frees, leaks and lost devices.
func TestLives(t *testing.T) {
	b := newBench(t)
	b.Free(out)
	b.Free(out + 4) // not the start of an allocation, as the driver reports
	b.run(b.Stream(), 1, 32, store)
	if all := b.expect("a kernel on freed memory", checklog.UseAfterFree); len(all) == 1 &&
		(all[0].Allocation == nil || len(all[0].Allocation.Freed) == 0 || len(all[0].Allocation.Stack) == 0) {
		t.Errorf("%s", textOf(all[0]))
	}
	b.BadFree("MemFree", out)
	b.expect("a second free", checklog.InvalidFree)
	b.Refused("CopyDtoH", false, in+8190, 4)
	b.Refused("CopyHtoD", true, out, 4)
	b.expect("calls that reach beyond", checklog.OutOfBounds, checklog.UseAfterFree)
	b.Divergent("k", "x.go", 3, "a barrier")
	b.expect("a barrier", checklog.Barrier)
	b.Close(func(addr uint64) bool { return addr == in }, false)
	b.expect("closing", checklog.Leak)
	b.Alloc(in, 10)
	b.Close(func(addr uint64) bool { return true }, true)
	b.expect("a lost device's memory is no leak")
	findings, kernels := b.log.Counts()
	if findings != 6 || kernels != 1 {
		t.Errorf("%d findings, %d kernels", findings, kernels)
	}
}

// TestLog checks what is looked for, what is written, and that a defect is written once.
func TestLog(t *testing.T) {
	if _, err := NewLog(nil, nil, "memcheck", "typo"); err == nil || !strings.Contains(err.Error(), `"typo"`) ||
		!strings.Contains(err.Error(), "leaks") {
		t.Errorf("an unknown tool gives %v", err)
	}
	var js, text bytes.Buffer
	l, err := NewLog(&js, &text, "racecheck")
	if err != nil {
		t.Fatal(err)
	}
	c := New(l, func(uint64, uint64) bool { return false })
	c.Alloc(out, 64)
	c.BadFree("MemFree", 5)
	for range 3 {
		l.add(&checklog.Finding{Class: checklog.Race, Message: "Race", Kernel: "k", Device: []checklog.Frame{newFrame("k", "/a/b.go", 3)}})
	}
	lines := strings.Split(strings.TrimSpace(js.String()), "\n")
	if len(lines) != 2 || !strings.HasPrefix(lines[0], `{"checker":"TENON-CHECK","pid":`) ||
		!strings.Contains(lines[0], `"tools":["racecheck"]`) ||
		!strings.Contains(lines[1], `"file":"b.go","line":3`) || !strings.Contains(lines[1], `"tool":"racecheck"`) {
		t.Errorf("log:\n%s", js.String())
	}
	if got := text.String(); strings.Count(got, "========= Race\n=========     at k in b.go:3\n") != 1 {
		t.Errorf("text:\n%s", got)
	}
	text.Reset()
	l.add(&checklog.Finding{Class: checklog.Race, Message: "Race\x1b[2J\u202e", Kernel: "e",
		Device: []checklog.Frame{newFrame("k\n========= Race"+strings.Repeat("y", 1<<20), "b.go", 3)}})
	if got := text.String(); !strings.HasPrefix(got, `========= Race\x1b[2J\u202e`+"\n=========     at k\\x0a========= Race") ||
		len(got) > 3*maxLine || strings.Count(got, "\n") != 3 {
		t.Errorf("names that control terminals: %.300q", got)
	}
}

// TestOpen reads the environment as a process would.
func TestOpen(t *testing.T) {
	if l, err := open(); l != nil || err != nil {
		t.Errorf("nothing asked for gives %v, %v", l, err)
	}
	file := filepath.Join(t.TempDir(), "log")
	t.Setenv("TENON_CHECK", file)
	if l, err := open(); err != nil || !l.look(checklog.OutOfBounds) || !l.look(checklog.Barrier) || l.look(checklog.Leak) {
		t.Errorf("%v, %v", l, err)
	}
	t.Setenv("TENON_CHECK_TOOLS", "leaks, memcheck")
	if l, err := open(); err != nil || !l.look(checklog.OutOfBounds) || l.look(checklog.Race) || !l.look(checklog.Leak) {
		t.Errorf("%v, %v", l, err)
	}
	t.Setenv("TENON_CHECK", filepath.Join(file, "x"))
	if _, err := open(); err == nil || !strings.Contains(err.Error(), "TENON_CHECK") {
		t.Errorf("a file that cannot be gives %v", err)
	}
	t.Setenv("TENON_CHECK", "-")
	if l, err := open(); err != nil || l.json != nil || l.text == nil {
		t.Errorf("%v, %v", l, err)
	}
}

// TestClock: joining clocks.
func TestClock(t *testing.T) {
	a, b := clock{1, 5}, clock{3, 2, 7}
	if got := a.join(b); !slices.Equal(got, clock{3, 5, 7}) || !slices.Equal(a, clock{1, 5}) {
		t.Errorf("%v", got)
	}
	if got := b.join(clock{3, 1}); &got[0] != &b[0] {
		t.Error("joining what is known makes a new clock")
	}
	if a.at(9) != 0 {
		t.Error("a stream that is not known has run")
	}
}

// TestTiles checks that each element of a tile is read and written by one thread, which another region must not rely on.
func TestTiles(t *testing.T) {
	b := newBench(t)
	s := b.Stream()
	b.Fill(s.Enqueue("fill"), out, 4096)
	region := func(k *kernel.Builder, out kernel.Buffer, shift int) {
		tile := k.Tile("c", dtype.Float32, 16, 16)
		tile.Zero()
		tile.Each(1, func(row, col kernel.Value, vs []kernel.Value) {
			at := row.Mul(k.I32(16)).Add(col)
			v := k.At(out.Addr(), dtype.Float32).Load(at.Add(k.I32(shift)).Rem(k.I32(256)))
			k.At(out.Addr(), dtype.Float32).Store(at, v.Add(vs[0]))
		})
	}
	b.run(s, 1, 128, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { region(k, out, 0) })
	b.expect("in place")
	b.run(s, 1, 128, func(k *kernel.Builder, out, in kernel.Buffer, tid kernel.Value) { region(k, out, 1) })
	b.expect("the neighbour", checklog.Race)
}
