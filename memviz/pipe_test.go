package memviz

import (
	"errors"
	"testing"

	"tenon.dev/internal/snapshot"
)

// Data comes out in the order in which it went in, though the sender reuses its slice immediately. After an error nothing more is
// processed, and the sender gets the error.
func TestPipe(t *testing.T) {
	const count = 1000
	var got []uint64
	p := newPipe(func(device int, events []snapshot.Event) error {
		for _, e := range events {
			got = append(got, uint64(device)<<32|e.Addr)
		}
		return nil
	})
	buf := make([]snapshot.Event, 3)
	for i := range uint64(count) {
		for j := range buf {
			buf[j].Addr = 3*i + uint64(j)
		}
		if err := p.put(int(i%2), buf); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.close(); err != nil {
		t.Fatal(err)
	}
	for i, v := range got {
		if want := uint64(i/3%2)<<32 | uint64(i); v != want {
			t.Fatalf("event %d is %#x, want %#x", i, v, want)
		}
	}
	if len(got) != 3*count {
		t.Errorf("%d of %d events", len(got), 3*count)
	}

	broken, calls := errors.New("broken"), 0
	p = newPipe(func(int, []snapshot.Event) error {
		if calls++; calls == 2 {
			return broken
		}
		return nil
	})
	var err error
	for n := 0; err == nil && n < count; n++ {
		err = p.put(0, buf)
	}
	if e := p.close(); !errors.Is(err, broken) || !errors.Is(e, broken) || calls != 2 {
		t.Errorf("put gave %v, close %v, after %d calls", err, e, calls)
	}
}
