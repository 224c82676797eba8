package compile_test

import (
	"errors"
	"flag"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/internal/core"
)

var walkTime = flag.Duration("walktime", 0, "how long TestWalkSessions starts new programs; 0 is for a few")

// Sessions of eight goroutines run random programs on one device, all in one region, and each gets the same bits as without regions.
func TestWalkSessions(t *testing.T) {
	for _, checks := range []cuda.MemoryChecks{{}, {Guard: true, Poison: true}} {
		t.Run(fmt.Sprintf("%+v", checks), func(t *testing.T) { walkSessions(t, checks) })
	}
}

func walkSessions(t *testing.T, checks cuda.MemoryChecks) {
	x := openRandom(t, 7, 0, nil)
	x.Device().SetMemoryChecks(checks)
	live := core.LiveStorages()
	const sessions = 8
	r := compile.New()
	end := time.Now().Add(*walkTime)
	var next, ran, replays atomic.Int64
	next.Store(int64(*walkFrom))
	var wg sync.WaitGroup
	for range sessions {
		y, err := x.Fork()
		must(t, err)
		y = y.WithGenerator(cuda.NewGenerator(0)) // the device's own generator is shared
		streams := streamsOf(t, y)
		wg.Go(func() {
			for {
				seed := next.Add(1) - 1
				if *walkTime == 0 && seed >= int64(*walkFrom)+sessionPrograms || *walkTime > 0 && time.Now().After(end) || t.Failed() {
					break
				}
				if err := walkBeside(y, streams, uint64(seed), r); err != nil {
					t.Errorf("program %d: %v", seed, err)
				}
				ran.Add(1)
				if err := compile.Reset(y); err != nil {
					t.Errorf("program %d: Reset: %v", seed, err)
				}
			}
			replays.Add(int64(r.Stats(y).Replays))
			if err := y.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := leftOver(x, live); n > 0 {
		t.Errorf("%d storages are left", n)
	}
	t.Logf("%d programs, %d replays", ran.Load(), replays.Load())
	if replays.Load() < ran.Load() {
		t.Error("too little was replayed")
	}
}

// walkBeside runs the program without regions and in r.
func walkBeside(y *tenon.Exec, streams []*cuda.Stream, seed uint64, r *compile.Region) error {
	want, _, err := walkProgram(y, streams, seed, nil)
	if err != nil {
		return fmt.Errorf("eager: %w", err)
	}
	got, _, err := walkProgram(y, streams, seed, r)
	if err != nil {
		return err
	}
	if got != want {
		return errors.New("other results in the region: " + apart(got, want))
	}
	return nil
}
