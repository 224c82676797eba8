package hostsim

import (
	"slices"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// race has two devices fill and copy the same memory without waiting for each other, and returns the result.
func race(t *testing.T, seed uint64) []byte {
	a, b := drivertest.OpenPair(t, New(Options{Devices: 2, Policy: Random(seed)}))
	const n = 32
	var mem [2]driver.Ptr
	var streams [2][2]driver.Stream
	for i, d := range []driver.Device{a, b} {
		th := d.Enter()
		defer th.Leave()
		p, err := d.MemAlloc(th, n)
		must(t, err)
		mem[i] = p
		for j := range streams[i] {
			streams[i][j], err = d.StreamCreate(th, true, 0)
			must(t, err)
		}
		must(t, d.Memset(p, 0, 1, n, streams[i][0]))
		must(t, d.Synchronize(th))
	}
	for k := range driver.Ptr(n) {
		i := int(k) % 2
		d := []driver.Device{a, b}[i]
		must(t, d.Memset(mem[i]+k, uint32(k)+1, 1, 1, streams[i][k/2%2]))
		must(t, d.CopyPeer(mem[i], 1-i, mem[1-i], n, streams[i][(k/2+1)%2]))
	}
	got := make([]byte, 2*n)
	for _, d := range []driver.Device{a, b} {
		th := d.Enter()
		must(t, d.Synchronize(th))
		th.Leave()
	}
	for i, d := range []driver.Device{a, b} {
		must(t, d.CopyDtoH(got[i*n:][:n], mem[i], streams[i][0]))
	}
	return got
}

// TestScheduleOfTwoDevices checks that the order of work of two devices depends only on the seed.
func TestScheduleOfTwoDevices(t *testing.T) {
	first, others := race(t, 1), 0
	for seed := range uint64(20) {
		got := race(t, seed)
		if again := race(t, seed); !slices.Equal(got, again) {
			t.Errorf("seed %d gives %v and then %v", seed, got, again)
		}
		if !slices.Equal(got, first) {
			others++
		}
	}
	if others == 0 {
		t.Error("20 seeds give one schedule")
	}
}

// TestPeerOfLostDevice checks that a copy from a device lost to a fault is refused, and that the copying device keeps working.
func TestPeerOfLostDevice(t *testing.T) {
	m := New(Options{Devices: 2})
	a, err := m.Device(0)
	must(t, err)
	defer a.Close()
	b, err := m.Device(1)
	must(t, err)
	defer b.Close()
	ta, tb := a.Enter(), b.Enter()
	defer ta.Leave()
	defer tb.Leave()
	p, err := a.MemAlloc(ta, 512)
	must(t, err)
	q, err := b.MemAlloc(tb, 512)
	must(t, err)
	s, err := b.StreamCreate(tb, true, 0)
	must(t, err)
	u, err := a.StreamCreate(ta, true, 0)
	must(t, err)
	// If a copy is queued when its source goes away, the reading device faults.
	release := b.Hold(s)
	must(t, b.CopyPeer(q, 0, p, 512, s))
	must(t, a.MemFree(ta, p))
	release()
	want(t, b.StreamSynchronize(tb, s), "StreamSynchronize", driver.IllegalAddress)
	want(t, a.CopyPeer(p, 1, q, 512, u), "CopyPeer", driver.InvalidContext)
	r, err := a.MemAlloc(ta, 512)
	must(t, err)
	must(t, a.Memset(r, 1, 1, 512, u))
	must(t, a.StreamSynchronize(ta, u))
}
