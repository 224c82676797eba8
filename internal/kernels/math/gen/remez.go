package main

import (
	"math"
	"math/big"

	"tenon.dev/internal/kernels/math/bigref"
)

// grid is the number of Chebyshev points that represent the interval.
const grid = 600

// fit is a weighted minimax problem on a grid: find c with |Σ c[j] x^j - y| w least.
type fit struct {
	x, y, w []*big.Float
}

func newFit(lo, hi float64, y, w func(x *big.Float) *big.Float) *fit {
	var f fit
	for i := range grid {
		v := math.Cos(math.Pi * (float64(i) + 0.5) / grid)
		x := bigref.Of((lo+hi)/2 - (hi-lo)/2*v)
		f.x = append(f.x, x)
		f.y = append(f.y, y(x))
		f.w = append(f.w, w(x))
	}
	return &f
}

func num() *big.Float { return new(big.Float).SetPrec(bigref.Prec) }

// poly returns Σ c[j] x^(j+first).
func poly(c []*big.Float, first int, x *big.Float) *big.Float {
	s := num()
	for j := len(c) - 1; j >= 0; j-- {
		s.Mul(s, x).Add(s, c[j])
	}
	for range first {
		s.Mul(s, x)
	}
	return s
}

// errors returns the weighted error of c at every grid point.
func (f *fit) errors(c []*big.Float, first int) []float64 {
	e := make([]float64, len(f.x))
	for i, x := range f.x {
		d := poly(c, first, x)
		d.Sub(d, f.y[i]).Mul(d, f.w[i])
		e[i], _ = d.Float64()
	}
	return e
}

func worst(e []float64) float64 {
	m := 0.0
	for _, v := range e {
		m = max(m, math.Abs(v))
	}
	return m
}

// remez returns the n coefficients of x^first … with the least worst weighted error on the grid (Remez's second algorithm: E. Ya. Remez
// 1934). ok is false if the exchange did not converge, which can happen if the basis vanishes inside the interval.
func (f *fit) remez(first, n int) (c []*big.Float, ok bool) {
	ref := make([]int, n+1)
	for i := range ref {
		ref[i] = int(math.Round((1 - math.Cos(math.Pi*(float64(i)+0.5)/float64(n+1))) / 2 * float64(len(f.x)-1)))
	}
	for range 60 {
		var level float64
		c, level = f.level(ref, first, n)
		if c == nil {
			return nil, false
		}
		e := f.errors(c, first)
		if worst(e) <= math.Abs(level)*1.0001 {
			return c, true
		}
		next := exchange(e, n+1)
		if next == nil {
			return c, false
		}
		ref = next
	}
	return c, false
}

// level solves for the coefficients whose weighted errors at ref are equal in magnitude and alternate in sign.
func (f *fit) level(ref []int, first, n int) ([]*big.Float, float64) {
	m := make([][]*big.Float, n+1)
	for r, i := range ref {
		row := make([]*big.Float, n+2)
		p := num().SetInt64(1)
		for range first {
			p.Mul(p, f.x[i])
		}
		for j := range n {
			row[j] = num().Set(p)
			p.Mul(p, f.x[i])
		}
		row[n] = num().Quo(num().SetInt64(int64(1-2*(r&1))), f.w[i])
		row[n+1] = num().Set(f.y[i])
		m[r] = row
	}
	if !eliminate(m) {
		return nil, 0
	}
	c := make([]*big.Float, n)
	for j := range c {
		c[j] = m[j][n+1]
	}
	e, _ := m[n][n+1].Float64()
	return c, e
}

// eliminate solves the system in place; the last column becomes the solution.
func eliminate(m [][]*big.Float) bool {
	n := len(m)
	t := num()
	for col := range n {
		pivot := col
		for r := col + 1; r < n; r++ {
			if num().Abs(m[r][col]).Cmp(num().Abs(m[pivot][col])) > 0 {
				pivot = r
			}
		}
		m[col], m[pivot] = m[pivot], m[col]
		if m[col][col].Sign() == 0 {
			return false
		}
		for j := n; j >= col; j-- {
			m[col][j].Quo(m[col][j], m[col][col])
		}
		for r := range n {
			if r == col || m[r][col].Sign() == 0 {
				continue
			}
			for j := n; j >= col; j-- {
				m[r][j].Sub(m[r][j], t.Mul(m[r][col], m[col][j]))
			}
		}
	}
	return true
}

// exchange returns n points where e alternates in sign and is largest.
func exchange(e []float64, n int) []int {
	var peaks []int
	for i := range e {
		last := len(peaks) - 1
		switch {
		case last < 0 || (e[i] < 0) != (e[peaks[last]] < 0):
			peaks = append(peaks, i)
		case math.Abs(e[i]) > math.Abs(e[peaks[last]]):
			peaks[last] = i
		}
	}
	for len(peaks) > n {
		if math.Abs(e[peaks[0]]) < math.Abs(e[peaks[len(peaks)-1]]) {
			peaks = peaks[1:]
		} else {
			peaks = peaks[:len(peaks)-1]
		}
	}
	if len(peaks) < n {
		return nil
	}
	return peaks
}

// round returns v rounded to a float of the given mantissa bits.
func round(v *big.Float, bits int) *big.Float {
	if bits == 24 {
		r, _ := v.Float32()
		return bigref.Of(float64(r))
	}
	r, _ := v.Float64()
	return bigref.Of(r)
}

// solve returns n coefficients with the given number of mantissa bits, and their worst weighted error. Coefficients are rounded one by one,
// lowest power first, and the rest is refitted to the remainder, as long as that helps.
func (f *fit) solve(n, bits int) ([]*big.Float, float64) {
	c, _ := f.remez(0, n)
	best := make([]*big.Float, n)
	for j := range c {
		best[j] = round(c[j], bits)
	}
	bestErr := worst(f.errors(best, 0))
	done := make([]*big.Float, 0, n)
	rest := &fit{x: f.x, w: f.w}
	for k := range n {
		done = append(done, round(c[0], bits))
		if k == n-1 {
			break
		}
		rest.y = make([]*big.Float, len(f.y))
		for i, x := range f.x {
			rest.y[i] = num().Sub(f.y[i], poly(done, 0, x))
		}
		next, _ := rest.remez(k+1, n-1-k)
		if next == nil {
			return best, bestErr
		}
		trial := append([]*big.Float(nil), done...)
		for _, v := range next {
			trial = append(trial, round(v, bits))
		}
		if e := worst(f.errors(trial, 0)); e < bestErr {
			best, bestErr = trial, e
		}
		c = next
	}
	return best, bestErr
}
