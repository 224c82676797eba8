package optim

import (
	"math"
	"math/big"
)

// The C library's cos and pow, which PyTorch's schedules use, return the true value correctly rounded, except in rare cases. Those of
// package math are off by up to 7e-14 at such arguments, and differ between architectures; a recursion carries such differences through
// the rest of training. Here numbers have enough bits that only the last rounding counts. For the same reason, formulas put float64
// around a product that is a term of a sum: some architectures would not round it.
const precision = 128

// circle is pi to more bits than precision.
const circle = "3.14159265358979323846264338327950288419716939937510582097494459"

func wide(x float64) *big.Float { return new(big.Float).SetPrec(precision).SetFloat64(x) }

// series returns the sum of the terms from the first on, until one is too small to count.
func series(first *big.Float, next func(term *big.Float, i int) *big.Float) *big.Float {
	sum, term := wide(0), first
	for i := 1; term.Sign() != 0 && (sum.Sign() == 0 || term.MantExp(nil) > sum.MantExp(nil)-precision); i++ {
		sum.Add(sum, term)
		term = next(term, i)
	}
	return sum
}

// cos returns cos x.
func cos(x float64) float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return math.NaN()
	}
	pi, _, _ := big.ParseFloat(circle, 10, precision, big.ToNearestEven)
	turns := math.Round(x / math.Pi)
	r := wide(x)
	r.Sub(r, pi.Mul(pi, wide(turns)))
	square := wide(0).Mul(r, r)
	sum := series(wide(1), func(term *big.Float, i int) *big.Float {
		return term.Mul(term, square).Quo(term, wide(float64(-2*i*(2*i-1))))
	})
	if math.Mod(turns, 2) != 0 {
		sum.Neg(sum)
	}
	c, _ := sum.Float64()
	return c
}

// pow returns x^y for finite x ≥ 0 and y ≥ 0.
func pow(x, y float64) float64 {
	switch {
	case y == 0 || x == 1:
		return 1
	case x == 0 || y == 1:
		return x
	}
	// Outside a float64's range, no bit of the logarithm counts.
	if e := y * math.Log2(x); e > 1100 {
		return math.Inf(1)
	} else if e < -1200 {
		return 0
	}
	if y == math.Trunc(y) {
		v, square := wide(1), wide(x)
		for n := uint64(y); n > 0; n /= 2 {
			if n%2 == 1 {
				v.Mul(v, square)
			}
			square.Mul(square, square)
		}
		f, _ := v.Float64()
		return f
	}
	// x is m·2^e with ln m = 2·atanh((m-1)/(m+1)).
	m, e := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, e = 2*m, e-1
	}
	ln2 := atanh(wide(1), wide(3))
	log := atanh(wide(0).Sub(wide(m), wide(1)), wide(0).Add(wide(m), wide(1)))
	log.Add(log, wide(0).Mul(ln2, wide(float64(e)))).Mul(log, wide(y))
	// e^log is 2^k·e^r.
	q, _ := wide(0).Quo(log, ln2).Float64()
	k := math.Round(q)
	r := log.Sub(log, wide(0).Mul(ln2, wide(k)))
	sum := series(wide(1), func(term *big.Float, i int) *big.Float {
		return term.Mul(term, r).Quo(term, wide(float64(i)))
	})
	v, _ := sum.SetMantExp(sum, int(k)).Float64()
	return v
}

// atanh returns 2·atanh(a/b), which is ln((b+a)/(b-a)).
func atanh(a, b *big.Float) *big.Float {
	z := a.Quo(a, b)
	square := wide(0).Mul(z, z)
	odd := wide(0).Copy(z)
	return series(wide(0).Add(z, z), func(_ *big.Float, i int) *big.Float {
		odd.Mul(odd, square)
		term := wide(0).Add(odd, odd)
		return term.Quo(term, wide(float64(2*i+1)))
	})
}
