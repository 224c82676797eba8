package kernels

import (
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"

	"tenon.dev/dtype"
)

// recordedRandom is testdata/rng.json.gz: numbers that PyTorch 2.11 drew on an H200.
type recordedRandom struct {
	SMs     int                                   `json:"sm_count"`
	Threads int                                   `json:"max_threads_per_sm"`
	Cases   map[string]map[string]json.RawMessage `json:"cases"`
}

func loadRandom(t *testing.T) *recordedRandom {
	f, err := os.Open("testdata/rng.json.gz")
	check(t, err)
	defer f.Close()
	z, err := gzip.NewReader(f)
	check(t, err)
	var r recordedRandom
	check(t, json.NewDecoder(z).Decode(&r))
	return &r
}

// generator draws like a device with the recorded limits.
type generator struct {
	h            *host
	seed, offset uint64
}

func (r *recordedRandom) generator(t *testing.T, seed string) *generator {
	h := newHost(t)
	h.limits.Multiprocessors, h.limits.MaxThreadsPerSM = r.SMs, r.Threads
	s, err := strconv.ParseUint(seed, 10, 64)
	check(t, err)
	return &generator{h: h, seed: s}
}

func (g *generator) draw(op *RandomOp, dt dtype.DType, n int, scalars ...Scalar) []float64 {
	out := g.h.empty(dt, n)
	check(g.h.t.(*testing.T), Random(g.h, op, scalars, out, Philox{Seed: g.seed, Offset: g.offset}))
	g.offset += op.Advance(&g.h.limits, dt, n)
	return g.h.read(out)
}

func (g *generator) uniform(dt dtype.DType, n int, from, to float64) []float64 {
	return g.draw(RandomUniform, dt, n, FloatScalar(from), FloatScalar(to-from), FloatScalar(to))
}

func (g *generator) normal(dt dtype.DType, n int, mean, std float64) []float64 {
	return g.draw(RandomNormal, dt, n, FloatScalar(mean), FloatScalar(std))
}

func (r *recordedRandom) get(t *testing.T, seed, key string, into any) {
	t.Helper()
	check(t, json.Unmarshal(r.Cases[seed][key], into))
}

func TestRandomIsPyTorchs(t *testing.T) {
	r := loadRandom(t)
	for seed := range r.Cases {
		for _, n := range []int{1, 5, 16, 1000, 70000, 600000} {
			g := r.generator(t, seed)
			u, z, after := g.uniform(dtype.Float32, n, 0, 1), g.normal(dtype.Float32, n, 0, 1), g.uniform(dtype.Float32, 3, 0, 1)
			var want [][2]float64
			r.get(t, seed, fmt.Sprintf("rand%d", n), &want)
			for _, w := range want {
				if u[int(w[0])] != w[1] {
					t.Fatalf("seed %s: uniform %v of %d is %v, want %v", seed, w[0], n, u[int(w[0])], w[1])
				}
			}
			r.get(t, seed, fmt.Sprintf("randn%d", n), &want)
			for _, w := range want {
				if !close(z[int(w[0])], w[1], 3e-6) {
					t.Fatalf("seed %s: normal %v of %d is %v, want %v", seed, w[0], n, z[int(w[0])], w[1])
				}
			}
			var next []float64
			r.get(t, seed, fmt.Sprintf("after%d", n), &next)
			var state [8]byte
			var bytes []int
			r.get(t, seed, fmt.Sprintf("state_offset%d", n), &bytes)
			for i, b := range bytes {
				state[i] = byte(b)
			}
			if after[0] != next[0] || after[2] != next[2] || g.offset != binary.LittleEndian.Uint64(state[:]) {
				t.Fatalf("seed %s after %d: %v at offset %d, want %v at %v", seed, n, after, g.offset, next, state)
			}
		}
		exact := func(key string, got []float64) {
			t.Helper()
			var want []float64
			r.get(t, seed, key, &want)
			for i := range want {
				if got[i] != want[i] {
					t.Fatalf("seed %s: %s %d is %v, want %v", seed, key, i, got[i], want[i])
				}
			}
		}
		near := func(key string, got []float64, tol float64) {
			t.Helper()
			var want []float64
			r.get(t, seed, key, &want)
			for i := range want {
				if !close(got[i], want[i], tol) {
					t.Fatalf("seed %s: %s %d is %v, want %v", seed, key, i, got[i], want[i])
				}
			}
		}
		fresh := func() *generator { return r.generator(t, seed) }
		exact("rand_f64_10", fresh().uniform(dtype.Float64, 10, 0, 1))
		exact("rand_f16_10", fresh().uniform(dtype.Float16, 10, 0, 1))
		exact("rand_bf16_10", fresh().uniform(dtype.BFloat16, 10, 0, 1))
		exact("uniform_m2_3_16", fresh().uniform(dtype.Float32, 16, -2, 3))
		near("randn_f64_10", fresh().normal(dtype.Float64, 10, 0, 1), 1e-14)
		near("normal_m1_s2_16", fresh().normal(dtype.Float32, 16, 1, 2), 4e-6)
		near("exponential_16", fresh().draw(RandomExponential, dtype.Float32, 16, FloatScalar(1)), 2e-6)
		exact("bernoulli__p25_32", fresh().draw(RandomBernoulli, dtype.Float32, 32, FloatScalar(0.25)))
		exact("randint_100_20", fresh().draw(RandomInt32, dtype.Int64, 20, IntScalar(100), IntScalar(0)))
		var big []string
		r.get(t, seed, "randint_big_20", &big)
		for i, v := range fresh().draw(RandomInt64, dtype.Int64, 20, IntScalar(3<<40), IntScalar(-1<<40)) {
			if strconv.FormatInt(int64(v), 10) != big[i] {
				t.Fatalf("seed %s: randint_big %d is %v, want %v", seed, i, v, big[i])
			}
		}
	}
}

// TestRandomForms checks that captured state, layouts and 64-bit indexes give the same numbers.
func TestRandomForms(t *testing.T) {
	g := &generator{h: newHost(t), seed: 99, offset: 16}
	h := g.h
	want := g.uniform(dtype.Float32, 5000, 0, 1)
	scalars := []Scalar{FloatScalar(0), FloatScalar(1), FloatScalar(1)}
	state := h.of(dtype.Int64, []float64{99, 12}, 2)
	ph := Philox{SeedPtr: state.Ptr, OffsetPtr: state.Ptr + 8, Offset: 4}
	h.index32 = 1000
	for name, out := range map[string]Operand{"vector": h.empty(dtype.Float32, 5000), "matrix": h.empty(dtype.Float32, 50, 100),
		"unaligned": sliced(h.empty(dtype.Float32, 5001), 0, 1, 5001, 1), "gaps": sliced(h.empty(dtype.Float32, 10000), 0, 0, 10000, 2)} {
		check(t, Random(h, RandomUniform, scalars, out, ph))
		for i, v := range h.read(out) {
			if v != want[i] {
				t.Fatalf("%s: element %d is %v, want %v", name, i, v, want[i])
			}
		}
	}
	check(t, Random(h, RandomUniform, scalars, h.empty(dtype.Float32, 0), ph))
	if Random(h, RandomUniform, nil, h.empty(dtype.Float32, 1), ph) == nil {
		t.Error("missing scalars are taken")
	}
}

// TestBernoulliOfEveryType checks that the numbers drawn do not depend on the type, also if a vector of four is wider than an access.
func TestBernoulliOfEveryType(t *testing.T) {
	g := &generator{h: newHost(t), seed: 99}
	want := g.draw(RandomBernoulli, dtype.Float32, 5000, FloatScalar(0.3))
	for _, dt := range []dtype.DType{dtype.Bool, dtype.Uint8, dtype.Float16, dtype.Int32, dtype.Int64, dtype.Complex64} {
		g.offset = 0
		for i, v := range g.draw(RandomBernoulli, dt, 5000, FloatScalar(0.3)) {
			if v != want[i] {
				t.Fatalf("%v: element %d is %v, want %v", dt, i, v, want[i])
			}
		}
	}
}

// TestRandomVectors checks that vectors hold the numbers that are drawn one by one, also if the last vectors are cut short.
func TestRandomVectors(t *testing.T) {
	g := &generator{h: newHost(t), seed: 99}
	h := g.h
	ph := Philox{Seed: g.seed, Offset: 8}
	for _, op := range randomOps {
		for _, dt := range []dtype.DType{dtype.Float32, dtype.BFloat16, dtype.Int64, dtype.Uint8} {
			if op.integers {
				continue
			}
			scalars := []Scalar{FloatScalar(0.25), FloatScalar(0.5), FloatScalar(0.75)}[:op.scalars]
			const n = 41001
			vectors, single := h.empty(dt, n), sliced(h.empty(dt, n+1), 0, 1, n+1, 1)
			check(t, Random(h, op, scalars, vectors, ph))
			if vec := h.l.Spec.Vec; (vec == randomVec) != (dt.Size() <= 4) {
				t.Errorf("%s of %v takes vectors of %d", op.name, dt, vec)
			}
			check(t, Random(h, op, scalars, single, ph))
			want := h.read(single)
			for i, v := range h.read(vectors) {
				if v != want[i] {
					t.Fatalf("%s of %v: element %d is %v, want %v", op.name, dt, i, v, want[i])
				}
			}
		}
	}
}

// TestCauchyKeepsFromTheEnds draws with words that give uniform numbers within 2^-23 of 1 and of 0.
func TestCauchyKeepsFromTheEnds(t *testing.T) {
	g := &generator{h: newHost(t), seed: 3}
	for _, c := range []struct {
		block uint64
		sign  float64
	}{{2350790, 1}, {4595281, -1}} {
		g.offset = 4 * c.block
		u := g.uniform(dtype.Float32, 1, 0, 1)[0]
		g.offset = 4 * c.block
		v := g.draw(RandomCauchy, dtype.Float32, 1, FloatScalar(0), FloatScalar(1))[0]
		want := math.Tan(float64(float32(c.sign * (0.5 - 0x1p-23) * float64(float32(math.Pi)))))
		if math.Abs(0.5-math.Abs(u-0.5)) > 0x1p-24 || !close(v, want, 1e-6) {
			t.Errorf("%v gives %v, want %v", u, v, want)
		}
	}
}

// TestGeometricNumbersAreQuotients checks that the numbers equal the results of a division, for any divisor. An exponential number of rate
// 1 is the negative logarithm; the divisor's logarithm may be off by a unit in the last place.
func TestGeometricNumbersAreQuotients(t *testing.T) {
	const n = 1 << 15
	g := &generator{h: newHost(t), seed: 17}
	logs := g.draw(RandomExponential, dtype.Float32, n, FloatScalar(1))
	for _, p := range []float64{1e-45, 1e-39, 1e-30, 1e-7, 1e-3, 0.2, 0.25, 0.3, 0.5, 0.75, 0.9, 1 - 0x1p-24, 1 - 1e-12} {
		g.offset = 0
		got := g.draw(RandomGeometric, dtype.Float32, n, FloatScalar(p))
		d := float32(-math.Log1p(-float64(float32(p))))
		wrong := n
		for _, d := range []float32{d, math.Nextafter32(d, 0), math.Nextafter32(d, 100)} {
			bad := 0
			for i, l := range logs {
				if l != 0x1p-24 && float64(float32(math.Ceil(float64(float32(l)/d)))) != got[i] {
					bad++
				}
			}
			wrong = min(wrong, bad)
		}
		if wrong > 0 {
			t.Errorf("p %v: %d numbers of %d are no quotients", p, wrong, n)
		}
	}
}

// TestNormalsAreNear compares a million normal numbers with those from the same words in float64.
func TestNormalsAreNear(t *testing.T) {
	const n, threads = 1 << 20, 2 * 8 * 256
	g := &generator{h: newHost(t), seed: 31}
	z := g.normal(dtype.Float32, n, 0, 1)
	worst := 0.0
	for thread := range threads {
		for block := range n / threads / 4 {
			w := philoxRef(g.seed, uint64(block), uint64(thread))
			for j := range w {
				u := float64(float32(float64(float32(w[j&^1]))*0x1p-32 + 0x1p-33))
				radius := math.Sqrt(-2 * math.Log(u))
				sin, cos := math.Sincos(2 * math.Pi * (float64(w[j|1]) + 0.5) * 0x1p-32)
				want := radius * sin
				if j&1 == 1 {
					want = radius * cos
				}
				got := z[thread+threads*(j+4*block)]
				worst = max(worst, math.Abs(got-want)/math.Abs(want))
			}
		}
	}
	t.Logf("relative error up to %.3g units of 2^-24", worst*0x1p24)
	if worst > 0x1p-21 {
		t.Errorf("relative error of %.3g", worst)
	}
}

func TestRandomMoments(t *testing.T) {
	g := &generator{h: newHost(t), seed: 5}
	const n = 60000
	moments := func(vs []float64) (mean, std float64) {
		mean, v := varianceOf(vs, 0)
		return mean, math.Sqrt(v)
	}
	for name, c := range map[string]struct {
		vs        []float64
		mean, std float64
	}{
		"normal":     {g.normal(dtype.Float32, n, 2, 3), 2, 3},
		"normal f64": {g.normal(dtype.Float64, n, 2, 3), 2, 3},
		"log normal": {g.draw(RandomLogNormal, dtype.Float32, n, FloatScalar(0), FloatScalar(0.5)), math.Exp(0.125),
			math.Sqrt((math.Exp(0.25) - 1) * math.Exp(0.25))},
		"geometric": {g.draw(RandomGeometric, dtype.Float32, n, FloatScalar(0.25)), 4, math.Sqrt(12)},
	} {
		if m, s := moments(c.vs); math.Abs(m-c.mean) > 0.05*c.std || math.Abs(s-c.std) > 0.05*c.std {
			t.Errorf("%s: mean %v and deviation %v, want %v and %v", name, m, s, c.mean, c.std)
		}
	}
	below := 0
	for _, v := range g.draw(RandomCauchy, dtype.Float32, n, FloatScalar(1), FloatScalar(2)) {
		if v < 3 {
			below++
		}
	}
	if f := float64(below) / n; math.Abs(f-0.75) > 0.01 {
		t.Errorf("cauchy: %v below the third quartile", f)
	}
}

func TestDropoutIsPyTorchs(t *testing.T) {
	r := loadRandom(t)
	for seed := range r.Cases {
		g := r.generator(t, seed)
		var want []float64
		r.get(t, seed, "dropout_64", &want)
		n := len(want)
		ones := make([]float64, n)
		for i := range ones {
			ones[i] = 1
		}
		out, mask, in := g.h.empty(dtype.Float32, n), g.h.empty(dtype.Bool, n), g.h.of(dtype.Float32, ones, n)
		check(t, Dropout(g.h, dtype.Float32, 0.5, out, mask, in, Philox{Seed: g.seed}))
		got, kept := g.h.read(out), g.h.read(mask)
		for i := range want {
			if got[i] != want[i] || (kept[i] != 0) != (want[i] != 0) {
				t.Fatalf("seed %s: dropout %d is %v (%v), want %v", seed, i, got[i], kept[i], want[i])
			}
		}
		r.get(t, seed, "bernoulli_p5_32", &want)
		for i := range ones {
			ones[i] = 0.5
		}
		p, drawn := g.h.of(dtype.Float32, ones[:32], 32), g.h.empty(dtype.Float32, 32)
		check(t, Bernoulli(g.h, drawn, p, Philox{Seed: g.seed}))
		for i, v := range g.h.read(drawn) {
			if v != want[i] {
				t.Fatalf("seed %s: bernoulli %d is %v, want %v", seed, i, v, want[i])
			}
		}
	}
}

// TestDropoutForms checks every mapping from words to elements against the words themselves.
func TestDropoutForms(t *testing.T) {
	h := newHost(t)
	const threads = 2 * 8 * 256 // in the whole grid, once there is enough work
	word := func(thread, i int) float64 {
		w := philoxRef(77, uint64(8/4+i/4), uint64(thread))[i%4]
		return float64(float32(w)*0x1p-32 + 0x1p-33)
	}
	for n, word := range map[int]func(i int) float64{
		20000: func(i int) float64 { return word(i/4%threads, i/4/threads*4+i%4) },
		20002: func(i int) float64 { return word(i/2%threads, i/2/threads*2+i%2) },
		20001: func(i int) float64 { return word(i%threads, i/threads) },
		80000: func(i int) float64 { return word(i/4%threads, i/4/threads*4+i%4) },
		80002: func(i int) float64 { return word(i/2%threads, i/2/threads*2+i%2) },
	} {
		for _, limit := range []int{1<<31 - 1, 100} {
			h.index32 = limit
			for dt, tolerance := range map[dtype.DType]float64{dtype.Float32: 1e-6, dtype.BFloat16: 1e-2} {
				in := h.random(rand.New(rand.NewPCG(1, 1)), dt, n)
				out, mask := h.empty(dt, n), h.empty(dtype.Bool, n)
				check(t, Dropout(h, dt, 0.25, out, mask, in, Philox{Seed: 77, Offset: 8}))
				x, y, m := h.read(in), h.read(out), h.read(mask)
				for i := range y {
					keep := truthRef(word(i) < 0.75)
					if m[i] != keep || !close(y[i], x[i]*keep/0.75, tolerance) {
						t.Fatalf("n %d of %v: element %d of %v is %v with %v, want %v", n, dt, i, x[i], y[i], m[i], keep)
					}
				}
			}
		}
	}
	empty := h.empty(dtype.Float32, 0)
	check(t, Dropout(h, dtype.Float32, 0.5, empty, h.empty(dtype.Bool, 0), empty, Philox{}))
	check(t, Bernoulli(h, empty, empty, Philox{}))
	flat := h.empty(dtype.Float32, 12)
	if Dropout(h, dtype.Float32, 0.5, h.empty(dtype.Float32, 3, 4), h.empty(dtype.Bool, 3, 4), flat, Philox{}) == nil ||
		Bernoulli(h, h.empty(dtype.Float32, 3, 4), flat, Philox{}) == nil {
		t.Error("operands of other ranks are taken")
	}
	rng := rand.New(rand.NewPCG(2, 2))
	p := h.empty(dtype.Float64, 30, 50)
	h.write(p, func(int) complex128 { return complex(max(0, min(1, rng.Float64()*1.5-0.25)), 0) })
	out := h.empty(dtype.Bool, 50, 30)
	check(t, Bernoulli(h, permuted(out, 1, 0), p, Philox{Seed: 77, Offset: 8}))
	ps := h.read(p)
	for i, v := range h.read(permuted(out, 1, 0)) {
		if want := truthRef(word(i/4, i%4) <= ps[i]); v != want {
			t.Fatalf("bernoulli %d is %v, want %v", i, v, want)
		}
	}
}

// philoxRef is Philox4x32-10 in plain Go.
func philoxRef(seed, block, subsequence uint64) [4]uint32 {
	c := [4]uint32{uint32(block), uint32(block >> 32), uint32(subsequence), uint32(subsequence >> 32)}
	k := [2]uint32{uint32(seed), uint32(seed >> 32)}
	for range 10 {
		a, b := uint64(c[0])*0xD2511F53, uint64(c[2])*0xCD9E8D57
		c = [4]uint32{uint32(b>>32) ^ c[1] ^ k[0], uint32(b), uint32(a>>32) ^ c[3] ^ k[1], uint32(a)}
		k[0] += 0x9E3779B9
		k[1] += 0xBB67AE85
	}
	return c
}
