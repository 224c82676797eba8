package mersenne_test

import (
	"math"
	"slices"
	"strconv"
	"testing"

	"tenon.dev/internal/mersenne"
	"tenon.dev/internal/recorded"
)

// The draws of PyTorch's CPU generator were recorded one after another for each seed.
func TestRecordedDraws(t *testing.T) {
	r, err := recorded.OpenRandom("../../conformance/testdata/rng.json.gz")
	if err != nil {
		t.Fatal(err)
	}
	for seed, draws := range r.Seeds {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			g := mersenne.New(seed)
			values := func(name string) []float64 {
				v, err := draws.Values(name)
				if err != nil {
					t.Fatal(err)
				}
				return v
			}
			for i, want := range values("cpu_rand_20") {
				if got := g.Float32(); float64(got) != want {
					t.Fatalf("uniform %d is %v, want %v", i, got, want)
				}
			}
			for _, name := range []string{"cpu_randn_7", "cpu_randn_20"} {
				want := values(name)
				got := make([]float32, len(want))
				g.Normal32(got, 0, 1)
				for i := range want {
					if math.Abs(float64(got[i])-want[i]) > 1e-6*max(1, math.Abs(want[i])) {
						t.Errorf("%s: element %d is %v, want %v", name, i, got[i], want[i])
					}
				}
			}
			for i, want := range values("cpu_randint") {
				if got := g.Uint32() % 1000; float64(got) != want {
					t.Errorf("integer %d is %d, want %v", i, got, want)
				}
			}
			perm := values("cpu_randperm")
			for i, got := range g.Perm(len(perm)) {
				if float64(got) != perm[i] {
					t.Errorf("place %d of the permutation is %d, want %v", i, got, perm[i])
				}
			}
		})
	}
}

// Initial weights that PyTorch drew with seed 0, layer after layer, and its batches of two epochs are equal in every bit.
func TestRecordedRun(t *testing.T) {
	run, err := recorded.OpenDigitsRun("../../conformance/testdata/digits_run.safetensors")
	if err != nil {
		t.Fatal(err)
	}
	g := mersenne.New(0)
	for _, layer := range []struct {
		name  string
		fanIn int
	}{{"0", 9}, {"2", 144}, {"6", 512}, {"8", 64}} {
		for _, param := range []string{"weight", "bias"} {
			want := run.Init[layer.name+"."+param]
			bound := 1 / math.Sqrt(float64(layer.fanIn))
			got := make([]float32, want.Elements())
			g.Uniform32(got, -bound, bound)
			for i := range got {
				if float64(got[i]) != want.Real(i) {
					t.Fatalf("%s.%s: element %d is %v, want %v", layer.name, param, i, got[i], want.Real(i))
				}
			}
		}
	}
	g = mersenne.New(0)
	const rows, batch = 1438, 64
	var order []int
	for step, want := range run.Batches {
		if len(order) < batch {
			order = g.Perm(rows)
		}
		for i, row := range order[:batch] {
			if int64(row) != want[i] {
				t.Fatalf("step %d: row %d is %d, want %d", step, i, row, want[i])
			}
		}
		order = order[batch:]
	}
}

func TestUniform64(t *testing.T) {
	g := mersenne.New(1)
	var v [1000]float64
	g.Uniform64(v[:], -2, 6)
	lo, hi := slices.Min(v[:]), slices.Max(v[:])
	if lo < -2 || hi >= 6 || hi-lo < 7.5 {
		t.Errorf("1000 numbers between -2 and 6 lie between %v and %v", lo, hi)
	}
}

func TestPermIsOne(t *testing.T) {
	for _, n := range []int{0, 1, 2, 1000} {
		p := mersenne.New(7).Perm(n)
		slices.Sort(p)
		for i, v := range p {
			if i != v {
				t.Fatalf("n %d: %d is missing", n, i)
			}
		}
	}
}
