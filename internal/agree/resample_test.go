package agree

import (
	"fmt"

	"tenon.dev/internal/kernels"
)

// resamples are the sizes of interpolations, with their batch and channels first: one to three dimensions, larger and smaller, of one
// element, and large enough that a thread takes several elements.
var resamples = []struct {
	from, to []int
	v        view
	far      int
	corners  bool
}{
	{from: []int{3, 4, 17}, to: []int{3, 4, 40}},
	{from: []int{3, 4, 40}, to: []int{3, 4, 13}, v: padded, corners: true},
	{from: []int{1, 2, 100_003}, to: []int{1, 2, 170_001}, far: 1000},
	{from: []int{2, 5, 8, 9}, to: []int{2, 5, 16, 18}},
	{from: []int{2, 5, 8, 9}, to: []int{2, 5, 7, 25}, v: turned, corners: true},
	{from: []int{2, 5, 12, 1}, to: []int{2, 5, 1, 6}, v: padded, far: 50},
	{from: []int{2, 6, 9, 8}, to: []int{2, 6, 13, 15}, v: channelsLast},
	{from: []int{2, 64, 45, 47}, to: []int{2, 64, 90, 94}, v: channelsLast},
	{from: []int{2, 64, 50, 48}, to: []int{2, 64, 45, 47}, v: channelsLast, corners: true},
	{from: []int{2, 20, 45, 47}, to: []int{2, 20, 90, 96}},
	{from: []int{2, 3, 4, 5, 6}, to: []int{2, 3, 7, 4, 9}, corners: true},
	{from: []int{1, 4, 6, 1, 7}, to: []int{1, 4, 3, 5, 14}, v: turned, far: 50},
}

// resampling tries linear interpolation and its gradient.
func resampling(p *pair) {
	for _, t := range rowTypes {
		for _, c := range resamples {
			r := &kernels.Resample{Corners: c.corners}
			for d, from := range c.from[2:] {
				to := c.to[2+d]
				r.Step[d] = float64(from) / float64(to)
				if c.corners {
					r.Step[d] = float64(from-1) / float64(max(to-1, 1))
				}
			}
			name := fmt.Sprintf("resample %v %v %v %d", t, c.from, c.to, c.v)
			p.try(trial{name: name, index32: c.far, arrays: []*array{out(t, c.v, c.to...), in(t, c.v, spotted, c.from...)},
				run: func(is kernels.Issuer, o []kernels.Operand) error { return r.Forward(is, o[0], o[1]) }})
			p.try(trial{name: name + " backward", index32: c.far, arrays: []*array{out(t, c.v, c.from...), in(t, c.v, mild, c.to...)},
				run: func(is kernels.Issuer, o []kernels.Operand) error { return r.Backward(is, o[0], o[1]) }})
		}
	}
}
