package agree

import (
	"fmt"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// TestFewQueries checks that attention of few queries gives the same bits on both devices: in one part and in some, with heads that share
// keys, with rows beyond the last query, and with all kinds of masks.
func TestFewQueries(t *testing.T) {
	spread(t, func(p *pair) {
		for i, c := range []struct{ b, h, kv, t, s, d int }{
			{1, 3, 3, 1, 40, 64}, {2, 8, 2, 1, 700, 128}, {1, 3, 3, 2, 1100, 32}, {1, 6, 2, 5, 200, 64}, {3, 4, 4, 15, 140, 16},
			{1, 8, 1, 1, 129, 64},
		} {
			for j, dt := range []dtype.DType{dtype.BFloat16, dtype.Float16} {
				for kind := range 5 {
					q, k, v := in(dt, dense, anything, c.b, c.h, c.t, c.d), in(dt, dense, anything, c.b, c.kv, c.s, c.d),
						in(dt, dense, anything, c.b, c.kv, c.s, c.d)
					if (i+j+kind)%3 == 0 { // no infinities and NaNs
						q.fill, k.fill, v.fill = mild, mild, mild
					}
					mask := absent
					shape := []int{c.b, c.h, c.t, c.s}
					if kind > 2 { // the same for all heads and queries
						shape[1], shape[2] = 1, 1
					}
					switch kind {
					case 1, 3:
						mask = in(dtype.Bool, dense, anything, shape...)
					case 2, 4:
						mask = in(dt, dense, anything, shape...)
					}
					p.try(trial{
						name:   fmt.Sprintf("few queries %v %v %d", c, dt, kind),
						arrays: []*array{out(dt, dense, c.b, c.h, c.t, c.d), out(dtype.Float32, dense, c.b, c.h, c.t), q, k, v, mask},
						run: func(is kernels.Issuer, ops []kernels.Operand) error {
							opt := kernels.AttentionOpt{Scale: 0.3, Mask: ops[5]}
							if kind > 2 {
								of := opt.Mask.Stride
								opt.Mask.Shape, opt.Mask.Stride = []int{c.b, c.h, c.t, c.s}, []int{of[0], 0, 0, of[3]}
							}
							return kernels.Attention(is, ops[0], ops[1], ops[2], ops[3], ops[4], opt)
						},
					})
				}
			}
		}
	})
}
