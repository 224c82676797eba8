package kernels

import (
	"fmt"

	"tenon.dev/dtype"
)

// grouped is storage for operands of group norm viewed as [batch, group, channel in the group, position], and for vectors of channels.
type grouped struct {
	shape  [4]int
	stride [12][4]int
	n      int
	split  [2]int
}

func (g *grouped) init(batch, channels, places, groups int) error {
	if groups <= 0 || channels%groups != 0 {
		return fmt.Errorf("group_norm: %d channels do not divide into %d groups", channels, groups)
	}
	g.shape = [4]int{batch, groups, channels / groups, places}
	g.split = [2]int{channels / groups, 1}
	return nil
}

func (g *grouped) see(o Operand, stride [4]int) Operand {
	g.stride[g.n] = stride
	g.n++
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: g.shape[:], Stride: g.stride[g.n-1][:]}
}

// full views an array of the input's shape, which is dense unless it is viewed in that way already; perGroup views a dense matrix [batch,
// group], and perChannel a dense vector [channel], which may be absent.
func (g *grouped) full(o Operand) Operand {
	s := g.shape
	if len(o.Stride) == len(s) && len(o.Shape) == len(s) && [4]int(o.Shape) == s {
		return g.see(o, [4]int(o.Stride))
	}
	return g.see(o, [4]int{s[1] * s[2] * s[3], s[2] * s[3], s[3], 1})
}

func (g *grouped) perGroup(o Operand) Operand { return g.see(o, [4]int{g.shape[1], 1, 0, 0}) }

func (g *grouped) perChannel(o Operand) Operand {
	if o.Ptr == 0 {
		return o
	}
	return g.see(o, [4]int{0, g.shape[2], 1, 0})
}

// GroupNormStats stores the means and the reciprocal deviations of groups. x is [batch, group, channel in the group, place]. mean and rstd
// are [batch, group, 1, 1], of any float type (PyTorch gives them the input's type).
func GroupNormStats(is Issuer, compute dtype.DType, mean, rstd, x Operand, eps float64) error {
	over := []bool{false, false, true, true}
	return Reduce(is, normMoments, compute, []Scalar{FloatScalar(eps)}, []Operand{mean, rstd}, []Operand{x}, over)
}

// GroupNormBackward stores the gradients of a group norm's x, weight and bias; each may be absent (Ptr 0). x, dy and dx are dense arrays of
// batch × channels × places elements, or [batch, group, channel in the group, place] with any strides. mean and rstd are dense [batch,
// groups], the others dense vectors [channels]. One pass over dy and x makes sums for each channel of each batch entry, from which those
// for groups and for the gradients of weight and bias are made.
func GroupNormBackward(is Issuer, compute dtype.DType, batch, channels, places, groups int, dx, dweight, dbias, dy, x, mean, rstd,
	weight Operand) error {
	var g grouped
	if err := g.init(batch, channels, places, groups); err != nil {
		return err
	}
	dys, xs, m, r, w := g.full(dy), g.full(x), g.perGroup(mean), g.perGroup(rstd), g.perChannel(weight)
	ins := []Operand{dys, xs, m, r}
	if overBatch := []bool{true, false, false, true}; dx.Ptr == 0 {
		switch {
		case dweight.Ptr == 0 && dbias.Ptr == 0:
			return nil
		case dweight.Ptr == 0:
			return Reduce(is, Sum, compute, nil, []Operand{g.vector(dbias)}, ins[:1], overBatch)
		case dbias.Ptr == 0:
			return Reduce(is, normWeightGrad, compute, nil, []Operand{g.vector(dweight)}, ins, overBatch)
		}
	}
	t := opmath(compute)
	all, some := batch*channels*t.Size(), batch*groups*t.Size()
	ws, err := is.Workspace(2 * (all + some))
	if err != nil {
		return err
	}
	at := func(offset int) Operand { return Operand{Ptr: ws + uint64(offset), DType: t} }
	// Σ dy·(x-mean)·rstd and Σ dy over places.
	weighted, plain := g.perEntry(at(0)), g.perEntry(at(all))
	if err := Reduce(is, normAffineGrad, compute, nil, []Operand{weighted, plain}, ins, []bool{false, false, false, true}); err != nil {
		return err
	}
	first := func(o Operand, n int) Operand { // without the dimensions from n on
		o.Shape, o.Stride = o.Shape[:n], o.Stride[:n]
		return o
	}
	weighted, plain = first(weighted, 3), first(plain, 3)
	if dx.Ptr != 0 {
		ofWeight, ofAll := g.perGroup(at(2*all)), g.perGroup(at(2*all+some))
		outs, over, err := []Operand{first(ofWeight, 2), first(ofAll, 2)}, []bool{false, false, true}, error(nil)
		if weight.Ptr == 0 {
			err = Reduce(is, pairSums, t, nil, outs, []Operand{weighted, plain}, over)
		} else {
			err = Reduce(is, groupGradSums, t, nil, outs, []Operand{weighted, plain, first(w, 3)}, over)
		}
		if err != nil {
			return err
		}
		s := []Scalar{FloatScalar(1 / float64(channels/groups*places))}
		if weight.Ptr == 0 {
			s = append(s, FloatScalar(1))
		}
		all := []Operand{dys, xs, m, r, w, ofAll, ofWeight}
		if err := Pointwise(is, groupNormGrad, compute, s, []Operand{g.full(dx)}, all); err != nil {
			return err
		}
	}
	over := []bool{true, false, false}
	switch {
	case dweight.Ptr == 0 && dbias.Ptr == 0:
		return nil
	case dweight.Ptr == 0:
		return Reduce(is, Sum, t, nil, []Operand{g.vector(dbias)}, []Operand{plain}, over)
	case dbias.Ptr == 0:
		return Reduce(is, Sum, t, nil, []Operand{g.vector(dweight)}, []Operand{weighted}, over)
	}
	return Reduce(is, pairSums, t, nil, []Operand{g.vector(dweight), g.vector(dbias)},
		[]Operand{weighted, plain}, over)
}

// perEntry views a dense array [batch, channel].
func (g *grouped) perEntry(o Operand) Operand {
	return g.see(o, [4]int{g.shape[1] * g.shape[2], g.shape[2], 1, 0})
}

// vector views a dense vector [channels] as [group, channel in the group].
func (g *grouped) vector(o Operand) Operand {
	return Operand{Ptr: o.Ptr, DType: o.DType, Shape: g.shape[1:3], Stride: g.split[:]}
}
