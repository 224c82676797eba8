package optim

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// Integer powers are compared with exact products, rounded once.
func TestPowerOfWholeNumbers(t *testing.T) {
	for _, x := range []float64{0.1, 0.3, 0.5, 0.9, 0.99, 1.01, 3} {
		exact := big.NewRat(1, 1)
		for n := range 300 {
			if want, _ := exact.Float64(); pow(x, float64(n)) != want {
				t.Errorf("%v^%d is %v, want %v", x, n, pow(x, float64(n)), want)
			}
			exact.Mul(exact, new(big.Rat).SetFloat64(x))
		}
	}
}

// Fractional powers are roots of integer powers: (x^(n/4))^4 = x^n, and x^(1/2) is the root.
func TestPowerOfParts(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		x := math.Exp(10 * rnd.NormFloat64())
		if got := pow(x, 0.5); got != math.Sqrt(x) {
			t.Errorf("%v^0.5 is %v, want %v", x, got, math.Sqrt(x))
		}
		y := float64(2*rnd.IntN(9)+1) / 4
		r := new(big.Float).SetPrec(400).SetFloat64(pow(x, y))
		r.Mul(r, r).Mul(r, r)
		want := new(big.Float).SetPrec(400).SetFloat64(x)
		whole := new(big.Float).SetPrec(400).SetInt64(1)
		for range int(4 * y) {
			whole.Mul(whole, want)
		}
		// Half a unit in the last place is at most 2^-53, and the fourth power multiplies it by four.
		q, _ := r.Quo(r, whole).Sub(r, big.NewFloat(1)).Float64()
		if math.Abs(q) > 4*0x1p-53*(1+1e-9) {
			t.Errorf("%v^%v is %v, whose fourth power is off by %v", x, y, pow(x, y), q)
		}
	}
}

func TestPowerAtTheEdges(t *testing.T) {
	for _, c := range []struct{ x, y, want float64 }{
		{0, 0, 1}, {0, 2, 0}, {0, 0.5, 0}, {1, 1e300, 1}, {7, 0, 1}, {1e-300, 1, 1e-300}, {1e200, 2, math.Inf(1)}, {1e-200, 2, 0},
		{0.5, 1e300, 0}, {2, 1e300, math.Inf(1)},
		{2, 1023, 0x1p1023}, {2, 1024, math.Inf(1)}, {0.5, 1074, 0x1p-1074}, {0.5, 1076, 0}, {4, 511.5, 0x1p1023},
		{0.25, 536.5, 0x1p-1073}, {math.SmallestNonzeroFloat64, 0.5, 0x1p-537},
		{math.MaxFloat64, 0.5, math.Sqrt(math.MaxFloat64)},
	} {
		if got := pow(c.x, c.y); got != c.want {
			t.Errorf("%v^%v is %v, want %v", c.x, c.y, got, c.want)
		}
	}
}

// The values are those of glibc 2.36; package math differs for some.
func TestCosine(t *testing.T) {
	for x, want := range map[float64]float64{
		0: 1, math.Pi: -1, 2 * math.Pi: 1, math.Pi / 2: 6.123233995736766e-17, 1.0471975511965976: 0.5000000000000001,
		1.0: 0.5403023058681398, 10.0: -0.8390715290764524, 3.1101767270538954: -0.9995065603657316,
		3.138451060936203: -0.9999950652018582, 2.5132741228718345: -0.8090169943749473, 123456.789: 0.05167253271870138,
		1000000000.0: 0.8378871813639024,
	} {
		if got := cos(x); got != want {
			t.Errorf("cos %v is %v, want %v", x, got, want)
		}
	}
	for _, x := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		if !math.IsNaN(cos(x)) {
			t.Errorf("cos %v is %v", x, cos(x))
		}
	}
	rnd := rand.New(rand.NewPCG(3, 4))
	for range 2000 {
		x := 100 * rnd.Float64()
		if got := cos(x); math.Abs(got-math.Cos(x)) > 2e-15*math.Abs(got)+1e-16 {
			t.Errorf("cos %v is %v, math has %v", x, got, math.Cos(x))
		}
		if cos(-x) != cos(x) {
			t.Errorf("cos %v is %v, of its negative %v", x, cos(x), cos(-x))
		}
	}
}
