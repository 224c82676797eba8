package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/cuda"
)

// randomTests are the behaviours of generators and of what draws from them.
var randomTests = []cudaTest{
	{name: "CUDA-027_test_torch_manual_seed_seeds_cuda_devices", run: testSeed},
	{name: "CUDA-028_test_manual_seed", run: testSeedDraws},
}

// testSeed draws from the device's generator and from one of its own, which a seed sets alike.
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
		coins[i] = x.Bernoulli(x.FullLike(numbers[i], 0.5, tenon.LikeOpt{}))
	}
	check(t, "uniform numbers are the same", equal(t, x, numbers[0], numbers[1]), true)
	check(t, "coins are the same", equal(t, x, coins[0], coins[1]), true)
	check(t, "seed after draws", g.Seed(), 2)
}
