package core

import (
	"runtime"
	"testing"
	"time"

	"tenon.dev/fault"
)

// TestOverwrittenMessagesEnd checks that the message for a storage whose memory was taken is kept as long as the storage, and no longer.
func TestOverwrittenMessagesEnd(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		number := func() uint64 {
			a := ones(x, 4)
			s := StoreOf(a)
			if err := Overwrite(s, "the memory was taken"); err != nil {
				t.Fatal(err)
			}
			_, err := x.Bytes(a)
			wantError(t, err, fault.Invalid, "the memory was taken")
			a.Close()
			return s.Number()
		}()
		for range 200 {
			if _, ok := overwritten.Load(number); !ok {
				return
			}
			runtime.GC()
			time.Sleep(time.Millisecond)
		}
		t.Error("the message is kept although the storage is gone")
	})
}

// TestClaimOfGone checks that a claim passes over storages that were closed or collected after they were named.
func TestClaimOfGone(t *testing.T) {
	opened(t, func(t *testing.T, x *Exec) {
		kept, closed := ones(x, 4), ones(x, 4)
		defer kept.Close()
		collected := Store{} // its weak pointer gives nil, too
		stores := []Store{collected, StoreOf(closed), StoreOf(kept)}
		closed.Close()
		c, ok := Claim(SessionOf(x), stores, true)
		if n := len(c.d.touched) - c.from; !ok || n != 1 {
			t.Errorf("the claim succeeds: %v; it has %d storages", ok, n)
		}
		c.Release()
	})
}
