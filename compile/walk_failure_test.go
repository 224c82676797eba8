package compile_test

import (
	"flag"
	"math/rand/v2"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/faults"
)

var (
	failingWalks = flag.Int("failingwalks", failingPrograms,
		"how many programs TestWalkProgramsFail runs; TestWalkProgramsFit runs a tenth, at least 3")
	everyFault = flag.Bool("everyfault", false, "TestWalkProgramsFail fails every call of the driver in turn")
	everySize  = flag.Bool("everysize", false, "TestWalkProgramsFit runs as many programs as TestWalkProgramsFail, to three sizes "+
		"beyond that with which all fit")
)

func streamsOf(t *testing.T, x *tenon.Exec) (streams []*cuda.Stream) {
	t.Helper()
	for range 2 {
		s, err := x.Device().Stream()
		must(t, err)
		streams = append(streams, s)
	}
	return streams
}

// allocated returns the number of bytes in use, not counting garbage.
func allocated(t *testing.T, x *tenon.Exec) uint64 {
	t.Helper()
	_, err := (*core.Exec)(x).Device().FreeLoose()
	must(t, err)
	return uint64(x.Device().MemoryAllocated())
}

// Random programs whose driver calls fail leave a device that gives right results, and leak no memory.
func TestWalkProgramsFail(t *testing.T) {
	var d *faults.Device
	open := func(t *testing.T, seed uint64) *tenon.Exec {
		return openRandom(t, seed, 256<<20, func(own driver.Device) driver.Device {
			d = faults.New(own)
			d.SpareFaults()
			return d
		})
	}
	fired, refused, tried := 0, 0, 0
	eachProgram(t, *failingWalks, open, func(t *testing.T, x *tenon.Exec, streams []*cuda.Stream, seed uint64) {
		live := core.LiveStorages()
		want, _, err := walkProgram(x, streams, seed, nil)
		must(t, err)
		leftOver(x, live)
		used := allocated(t, x)
		from := d.Calls()
		if got, _, err := walkProgram(x, streams, seed, compile.New()); err != nil || got != want {
			t.Fatalf("program %d: %v", seed, err)
		}
		must(t, compile.Reset(x))
		calls := d.Calls() - from
		rng := rand.New(rand.NewPCG(seed, 4))
		places := calls
		if !*everyFault {
			places = failuresOfEach
		}
		for n := range places {
			n, code := n+1, n%3
			if !*everyFault {
				n, code = 1+rng.IntN(calls), rng.IntN(3)
			}
			tried++
			d.Arm(n, code)
			out, _, err := walkProgram(x, streams, seed, compile.New())
			method, _ := d.Fired()
			d.Arm(0, 0)
			if err == nil && out != want {
				t.Errorf("program %d, call %d, %s %v: no error, but %s", seed, n, method, code, apart(out, want))
			}
			if method != "" {
				fired++
			}
			if err != nil {
				refused++
			}
			if rng.IntN(2) == 0 {
				if err := compile.Reset(x); err != nil {
					t.Errorf("program %d, call %d, %s %v: Reset: %v", seed, n, method, code, err)
				}
			}
			got, _, again := walkProgram(x, streams, seed, compile.New())
			if again != nil {
				t.Errorf("program %d, call %d, %s %v: %v; then: %v", seed, n, method, code, err, again)
			} else if got != want {
				t.Errorf("program %d, call %d, %s %v: %v; then %s", seed, n, method, code, err, apart(got, want))
			}
			if err := compile.Reset(x); err != nil {
				t.Errorf("program %d, call %d, %s %v: Reset: %v", seed, n, method, code, err)
			}
			if left := leftOver(x, live); left > 0 {
				t.Errorf("program %d, call %d, %s %v: %v: %d storages are left", seed, n, method, code, err, left)
				live += left
			} else if now := allocated(t, x); now > used {
				t.Errorf("program %d, call %d, %s %v: %v: %d bytes are left", seed, n, method, code, err, now-used)
				used = now
			}
		}
	})
	t.Logf("%d runs, %d calls failed, %d programs for it", tried, fired, refused)
	if fired == 0 || refused == 0 {
		t.Error("nothing failed")
	}
}

// Programs that fit without regions fit with them, apart from the memory of the graphs' own pool: one segment per stream, since tensors
// this small share one.
func TestWalkProgramsFit(t *testing.T) {
	const unit, own = 2 << 20, 3
	run := func(seed uint64, size uint64, r *compile.Region) (out string, err error) {
		x := openRandom(t, 3, size, nil)
		defer x.Close()
		live := core.LiveStorages()
		out, _, err = walkProgram(x, streamsOf(t, x), seed, r)
		if e := fault.KindOf(err); err != nil && e != fault.OutOfMemory {
			t.Errorf("program %d with %d MiB: %v", seed, size>>20, err)
		}
		must(t, compile.Reset(x))
		if left := leftOver(x, live); left > 0 {
			t.Errorf("program %d with %d MiB: %v: %d storages are left", seed, size>>20, err, left)
		}
		return out, err
	}
	failed, programs := 0, max(3, uint64(*failingWalks+9)/10)
	if *everySize {
		programs = uint64(*failingWalks)
	}
	for seed := *walkFrom; seed < *walkFrom+programs; seed++ {
		least := uint64(0)
		for n := uint64(1); n < 10 || *everySize && (least == 0 || n < least+own+3); n++ {
			want, err := run(seed, n*unit, nil)
			got, wrong := run(seed, n*unit, compile.New())
			if err == nil && least == 0 {
				least = n
			}
			switch {
			case err != nil && wrong != nil:
				failed++
			case err == nil && wrong != nil && n >= least+own:
				t.Errorf("program %d fits in %d MiB, but not with regions: %v", seed, n*unit>>20, wrong)
			case err == nil && wrong == nil && got != want:
				t.Errorf("program %d with %d MiB: %s", seed, n*unit>>20, apart(got, want))
			}
		}
	}
	if failed == 0 {
		t.Error("every program fits everywhere")
	}
}
