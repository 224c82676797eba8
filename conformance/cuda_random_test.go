package conformance

import (
	"slices"
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/internal/testdevice"
)

// randomTests are the behaviours of generators and of operations that draw from them.
var randomTests = []cudaTest{
	{name: "CUDA-027_test_torch_manual_seed_seeds_cuda_devices", run: testSeed},
	{name: "CUDA-028_test_manual_seed", run: testSeedDraws},
	{name: "CUDA-045_test_multinomial_ext", run: testMultinomial},
}

// testSeed draws from the device's generator and from a new one, which behave alike after the same seed.
func testSeed(t *testing.T, x *tenon.Exec) {
	g := x.Device().Generator()
	a, b, c := x.Zeros([]int{4, 4}, tenon.Float32), x.Zeros([]int{4, 4}, tenon.Float32), x.Zeros([]int{4, 4}, tenon.Float32)
	g.SetSeed(2)
	check(t, "seed", g.Seed(), 2)
	x.UniformInto(a, 0, 1)
	x.UniformInto(c, 0, 1)
	check(t, "the next numbers are the same", equal(t, x, a, c), false)
	g.SetSeed(2)
	x.UniformInto(b, 0, 1)
	check(t, "numbers after the same seed are the same", equal(t, x, a, b), true)
	check(t, "seed after draws", g.Seed(), 2)
	x.WithGenerator(cuda.NewGenerator(2)).UniformInto(c, 0, 1)
	check(t, "numbers of another generator with that seed are the same", equal(t, x, a, c), true)
}

func testSeedDraws(t *testing.T, x *tenon.Exec) {
	g := x.Device().Generator()
	var numbers, coins [2]*tenon.Tensor
	for i := range numbers {
		g.SetSeed(2)
		check(t, "seed", g.Seed(), 2)
		numbers[i] = x.Zeros([]int{4, 4}, tenon.Float32)
		x.UniformInto(numbers[i], 0, 1)
		coins[i] = x.Bernoulli(x.FullLike(numbers[i], 0.5))
	}
	check(t, "uniform numbers are the same", equal(t, x, numbers[0], numbers[1]), true)
	check(t, "coins are the same", equal(t, x, coins[0], coins[1]), true)
	check(t, "seed after draws", g.Seed(), 2)
}

// testMultinomial checks that categories of probability 0 are never drawn.
func testMultinomial(t *testing.T, x *tenon.Exec) {
	g := x.Device().Generator()
	// least returns the lowest probability that was drawn.
	least := func(p, drawn *tenon.Tensor) float64 {
		return item(t, x, x.AMin(x.Gather(p, len(p.Shape())-1, drawn), nil))
	}

	// Only a few in the middle of 150 have a positive probability, and the last has none.
	freqs := make([]float32, 150)
	for i := 40; i < 110; i++ {
		freqs[i] = float32(i%3) * 0.031
	}
	p := tenon.From(x, freqs, len(freqs))
	g.SetSeed(11042)
	if v := least(p, x.Multinomial(p, 1000, tenon.MultinomialOpt{Replacement: true})); !(v > 0) {
		t.Errorf("a category of the probability %v was drawn", v)
	}
	few := x.Multinomial(p, 46)
	if v := least(p, few); !(v > 0) {
		t.Errorf("without replacement a category of the probability %v was drawn", v)
	}
	seen := map[int64]bool{}
	for _, c := range testdevice.Read[int64](t, x, few) {
		if seen[c] {
			t.Errorf("without replacement category %d was drawn twice", c)
		}
		seen[c] = true
	}
	// A replay draws what comes next in the generator's sequence.
	var drawn *tenon.Tensor
	graph, err := x.Capture(func(x *tenon.Exec) { drawn = x.Multinomial(p, 20) })
	must(t, err)
	for range 2 {
		g.SetSeed(3)
		want := testdevice.Read[int64](t, x, x.Multinomial(p, 20))
		g.SetSeed(3)
		must(t, x.Replay(graph))
		check(t, "a replay draws the same", slices.Equal(testdevice.Read[int64](t, x, drawn), want), true)
	}
	must(t, graph.Close())

	pairs := x.Expand(tenon.From(x, []float32{0, 1}, 2), 3421, 2)
	for _, opt := range []tenon.MultinomialOpt{{}, {Replacement: true}} {
		g.SetSeed(5214)
		allAre(t, x, "the only category", x.Multinomial(pairs, 1, opt), 1)
	}
	allAre(t, x, "the only category, twice", x.Multinomial(pairs, 2, tenon.MultinomialOpt{Replacement: true}), 1)

	g.SetSeed(33)
	n := sized(1_000_000, 20_000)
	many := x.MulS(x.ClampMinS(x.RandN([]int{n}, tenon.Float32), 0), 3e-5)
	if v := least(many, x.Multinomial(many, n, tenon.MultinomialOpt{Replacement: true})); !(v > 0) {
		t.Errorf("of %d categories one of the probability %v was drawn", n, v)
	}
}
