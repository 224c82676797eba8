package hostsim

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"tenon.dev/internal/driver"
)

// open opens and enters device 0 of a new machine until the test ends.
func open(t *testing.T, o Options) (*Device, driver.Thread) {
	t.Helper()
	return enter(t, New(o), 0)
}

// enter opens and enters a device of d until the test ends.
func enter(t *testing.T, d *Driver, ordinal int) (*Device, driver.Thread) {
	t.Helper()
	dev, err := d.Device(ordinal)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	th := dev.Enter()
	t.Cleanup(th.Leave)
	return dev, th
}

// must fails the test if err is not nil.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// want fails the test unless err is an error with that call and code.
func want(t *testing.T, err error, call string, code driver.Code) {
	t.Helper()
	var e *driver.Error
	if !errors.As(err, &e) || e.Call != call || e.Code != code {
		t.Errorf("error is %v, want %s: %v (%d)", err, call, code, code)
	}
}

// alloc returns n bytes.
func alloc(t *testing.T, d *Device, th driver.Thread, n uint64) driver.Ptr {
	t.Helper()
	p, err := d.MemAlloc(th, n)
	must(t, err)
	return p
}

func TestFreshMemoryHoldsThePattern(t *testing.T) {
	d, th := open(t, Options{})
	s, err := d.StreamCreate(th, true, 0)
	must(t, err)
	for _, n := range []uint64{4, 1000, 5 << 20, 9<<20 + 4} {
		p := alloc(t, d, th, n)
		b := make([]byte, n)
		must(t, d.CopyDtoH(b, p, s))
		for i := 0; i+4 <= len(b); i += 4 {
			if v := binary.LittleEndian.Uint32(b[i:]); v != pattern {
				t.Fatalf("byte %d of %d holds %#x", i, n, v)
			}
		}
	}
}

func TestMemInfoSteps(t *testing.T) {
	d, th := open(t, Options{})
	_, total, err := d.MemInfo(th)
	must(t, err)
	used := func(want uint64) {
		t.Helper()
		free, _, err := d.MemInfo(th)
		must(t, err)
		if total-free != want*step {
			t.Errorf("%d bytes are used, want %d steps", total-free, want)
		}
	}
	used(0)
	a := alloc(t, d, th, 1)
	used(1)
	b := alloc(t, d, th, smallest-1) // shares the step
	used(1)
	c := alloc(t, d, th, smallest)
	used(2)
	e := alloc(t, d, th, step+1)
	used(4)
	must(t, d.MemFree(th, a))
	used(4)
	must(t, d.MemFree(th, b))
	used(3)
	must(t, d.MemFree(th, e))
	must(t, d.MemFree(th, c))
	used(0)
}

func TestAddressesAreReused(t *testing.T) {
	d, th := open(t, Options{})
	for _, n := range []uint64{512, 3 << 20} {
		keep := alloc(t, d, th, n)
		a := alloc(t, d, th, n)
		must(t, d.MemFree(th, a))
		if b := alloc(t, d, th, n); b != a {
			t.Errorf("%d bytes: freed %#x, then got %#x", n, a, b)
		}
		must(t, d.MemFree(th, keep))
	}
}

func TestAddressesAreNeverReused(t *testing.T) {
	d, th := open(t, Options{Addresses: NeverReuse()})
	seen := map[driver.Ptr]bool{}
	for i := range 100 {
		for _, n := range []uint64{512, 100_000, 3 << 20} {
			p := alloc(t, d, th, n)
			if seen[p] {
				t.Fatalf("round %d: address %#x again", i, p)
			}
			seen[p] = true
			if i%7 != 0 {
				must(t, d.MemFree(th, p))
			}
		}
	}
}

func TestAddressScript(t *testing.T) {
	const a = firstAddress + 1<<30
	d, th := open(t, Options{Addresses: Script(a, a+512, a+64<<20, a, 12345, 512, a)})
	p := alloc(t, d, th, 100)
	q := alloc(t, d, th, 4<<20)
	if p != a || q != a+512 {
		t.Errorf("addresses %#x, %#x", p, q)
	}
	_, err := d.MemAlloc(th, 1<<60)
	want(t, err, "MemAlloc", driver.OutOfMemory) // uses no address of the script
	if r := alloc(t, d, th, 1); r != a+64<<20 {
		t.Errorf("address %#x", r)
	}
	for range 3 { // in use; not a multiple of 512; below device addresses
		_, err := d.MemAlloc(th, 1)
		want(t, err, "MemAlloc", driver.InvalidValue)
	}
	must(t, d.MemFree(th, p))
	if r := alloc(t, d, th, 512); r != a {
		t.Errorf("a freed address of the script is not its own again: %#x", r)
	}
	if r := alloc(t, d, th, 512); r < a+1<<40 {
		t.Errorf("after the script: %#x", r)
	}
}

func TestScriptOutOfMemory(t *testing.T) {
	d, th := open(t, Options{Capacity: 4 << 20, Addresses: Script(firstAddress)})
	_, err := d.MemAlloc(th, 5<<20)
	want(t, err, "MemAlloc", driver.OutOfMemory)
}

func TestOutOfMemoryInAStep(t *testing.T) {
	d, th := open(t, Options{Capacity: 2 << 20})
	alloc(t, d, th, 600_000)
	alloc(t, d, th, 600_000)
	alloc(t, d, th, 600_000)
	_, err := d.MemAlloc(th, 600_000)
	want(t, err, "MemAlloc", driver.OutOfMemory)
	alloc(t, d, th, 1000)
}

// TestRandomAllocations compares with a model of the live blocks: none overlap, each keeps its bytes, and all memory is free at the end.
func TestRandomAllocations(t *testing.T) {
	d, th := open(t, Options{Capacity: 1 << 30})
	rng := rand.New(rand.NewPCG(1, 2))
	type block struct {
		p driver.Ptr
		n uint64
		v byte
	}
	var live []block
	for i := range 3000 {
		if len(live) > 0 && rng.IntN(2) == 0 {
			k := rng.IntN(len(live))
			b := live[k]
			mem := d.mem.bytes(b.p, b.n)
			if mem == nil || mem[0] != b.v || mem[b.n-1] != b.v {
				t.Fatalf("step %d: block %#x of %d lost its bytes", i, b.p, b.n)
			}
			must(t, d.MemFree(th, b.p))
			live = slices.Delete(live, k, k+1)
			continue
		}
		n := uint64(1 + rng.IntN(4000))
		switch rng.IntN(10) {
		case 0:
			n *= 1000
		case 1, 2:
			n *= 100
		}
		p, err := d.MemAlloc(th, n)
		if errors.Is(err, driver.OutOfMemory) {
			continue
		}
		must(t, err)
		for _, o := range live {
			if p < o.p+driver.Ptr(o.n) && o.p < p+driver.Ptr(n) {
				t.Fatalf("step %d: %#x of %d overlaps %#x of %d", i, p, n, o.p, o.n)
			}
		}
		mem := d.mem.bytes(p, n)
		b := block{p, n, byte(i)}
		mem[0], mem[n-1] = b.v, b.v
		live = append(live, b)
	}
	for _, b := range live {
		must(t, d.MemFree(th, b.p))
	}
	if free, total, _ := d.MemInfo(th); free != total {
		t.Errorf("%d bytes are used after all was freed", total-free)
	}
	if len(d.mem.free) != 1 || len(d.mem.slabs) != 0 || len(d.mem.live) != 0 {
		t.Errorf("after all was freed: %d free ranges, %d slabs, %d regions", len(d.mem.free), len(d.mem.slabs), len(d.mem.live))
	}
}

func TestResolve(t *testing.T) {
	d, th := open(t, Options{})
	p := alloc(t, d, th, 1000)
	h, err := d.HostAlloc(th, 100)
	must(t, err)
	for _, c := range []struct {
		addr uint64
		base uint64
		ok   bool
	}{
		{uint64(p), uint64(p), true},
		{uint64(p) + 999, uint64(p), true},
		{uint64(p) + 1000, 0, false},
		{uint64(p) - 1, 0, false},
		{0, 0, false},
		{hostAddress(h) + 99, hostAddress(h), true},
		{hostAddress(h) + 100, 0, false},
	} {
		_, base, ok := d.mem.Resolve(c.addr)
		if ok != c.ok || base != c.base {
			t.Errorf("Resolve(%#x) = %#x, %v", c.addr, base, ok)
		}
	}
	if hostAddress(h) >= firstAddress {
		t.Errorf("host address %#x lies among device addresses", hostAddress(h))
	}
}

// TestCloseFrees closes a device that holds memory of all kinds.
func TestCloseFrees(t *testing.T) {
	m := New(Options{Devices: 2})
	d, th := enter(t, m, 0)
	other, oth := enter(t, m, 1)
	alloc(t, d, th, 100)
	alloc(t, d, th, 5<<20)
	_, err := d.HostAlloc(th, 100)
	must(t, err)
	h, err := other.HostAlloc(oth, 100)
	must(t, err)
	must(t, d.Close())
	must(t, d.Close())
	if len(d.mem.live) != 0 || len(d.m.host.live) != 1 || d.mem.reserved != 0 {
		t.Errorf("after Close: %d regions, %d of page-locked memory", len(d.mem.live), len(d.m.host.live))
	}
	h[0] = 1 // the other device's memory is still there
	_, err = d.MemAlloc(th, 100)
	want(t, err, "MemAlloc", driver.Deinitialized)
	must(t, d.MemFree(th, 4096)) // no error
	must(t, d.HostFree(th, h))
	again, err := m.Device(0)
	must(t, err)
	defer again.Close()
	ath := again.Enter()
	defer ath.Leave()
	if free, total, err := again.MemInfo(ath); free != total || err != nil {
		t.Errorf("reopened: free %d of %d, %v", free, total, err)
	}
}

func TestOpenTwiceIsOneDevice(t *testing.T) {
	m := New(Options{})
	a, th := enter(t, m, 0)
	b, err := m.Open(0)
	must(t, err)
	p := alloc(t, a, th, 64)
	must(t, b.Close())
	must(t, b.Close())
	must(t, a.MemFree(th, p))
}
