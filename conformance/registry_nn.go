package conformance

import "tenon.dev"

// Pooling, losses and normalisation.

func init() {
	offer("nn.functional.max_pool2d", func(x *tenon.Exec, a *args) any {
		t, kernel := a.tensor(0, "input"), a.pair(1, "kernel_size", 0)
		opt := tenon.MaxPoolOpt{Stride: a.pair(2, "stride", 0), Padding: a.pair(3, "padding", 0), Dilation: a.pair(4, "dilation", 1),
			CeilMode: a.bool(5, "ceil_mode", false)}
		if a.bool(6, "return_indices", false) {
			y, indices := x.MaxPool2dWithIndices(t, kernel, opt)
			return []*tenon.Tensor{y, indices}
		}
		return x.MaxPool2d(t, kernel, opt)
	})
	interpolate := func(x *tenon.Exec, a *args) any {
		opt := tenon.InterpolateOpt{Mode: choice[tenon.InterpolateMode](a, 3, "mode"), AlignCorners: a.bool(4, "align_corners", false),
			RecomputeScale: a.bool(5, "recompute_scale_factor", false)}
		if a.has(1, "size") {
			opt.Size = a.ints(1, "size")
		}
		if a.has(2, "scale_factor") {
			opt.Scale = []float64{a.float(2, "scale_factor", 0)}
		}
		return x.Interpolate(a.tensor(0, "input"), opt)
	}
	offer("nn.functional.interpolate", interpolate)
	offer("nn.functional.upsample_nearest", interpolate)
	offer("nn.functional.avg_pool2d", func(x *tenon.Exec, a *args) any {
		return x.AvgPool2d(a.tensor(0, "input"), a.pair(1, "kernel_size", 0), tenon.AvgPoolOpt{Stride: a.pair(2, "stride", 0),
			Padding:  a.pair(3, "padding", 0),
			CeilMode: a.bool(4, "ceil_mode", false), ExcludePadding: !a.bool(5, "count_include_pad", true),
			Divisor: a.int(6, "divisor_override", 0)})
	})
	offer("nn.functional.adaptive_avg_pool2d", func(x *tenon.Exec, a *args) any {
		return x.AdaptiveAvgPool2d(a.tensor(0, "input"), a.outputSize(1, "output_size"))
	})
	offer("nn.functional.cross_entropy", func(x *tenon.Exec, a *args) any {
		return x.CrossEntropy(a.tensor(0, "input"), a.tensor(1, "target"), tenon.CrossEntropyOpt{Weight: a.tensor(2, "weight"),
			Ignore:      a.has(4, "ignore_index"),
			IgnoreIndex: a.int(4, "ignore_index", 0), Reduction: choice[tenon.Reduction](a, 6, "reduction"), LabelSmoothing: a.float(7,
				"label_smoothing", 0)})
	})
	offer("nn.functional.nll_loss", func(x *tenon.Exec, a *args) any {
		return x.NLLLoss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.NLLLossOpt{Weight: a.tensor(2, "weight"),
			Ignore:      a.has(4, "ignore_index"),
			IgnoreIndex: a.int(4, "ignore_index", 0), Reduction: choice[tenon.Reduction](a, 6, "reduction")})
	})
	offer("nn.functional.mse_loss", func(x *tenon.Exec, a *args) any {
		return x.MSELoss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.LossOpt{Reduction: choice[tenon.Reduction](a, 4, "reduction")})
	})
	offer("nn.functional.l1_loss", func(x *tenon.Exec, a *args) any {
		return x.L1Loss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.LossOpt{Reduction: choice[tenon.Reduction](a, 4, "reduction")})
	})
	offer("nn.functional.smooth_l1_loss", func(x *tenon.Exec, a *args) any {
		return x.SmoothL1Loss(a.tensor(0, "input"), a.tensor(1, "target"),
			tenon.SmoothL1LossOpt{Beta: a.option(5, "beta"), Reduction: choice[tenon.Reduction](a, 4, "reduction")})
	})
	offer("nn.functional.huber_loss", func(x *tenon.Exec, a *args) any {
		return x.HuberLoss(a.tensor(0, "input"), a.tensor(1, "target"),
			tenon.HuberLossOpt{Delta: a.option(3, "delta"), Reduction: choice[tenon.Reduction](a, 2, "reduction")})
	})
	offer("nn.functional.binary_cross_entropy", func(x *tenon.Exec, a *args) any {
		return x.BCE(a.tensor(0, "input"), a.tensor(1, "target"), tenon.BCEOpt{Weight: a.tensor(2, "weight"),
			Reduction: choice[tenon.Reduction](a, 5, "reduction")})
	})
	offer("nn.functional.kl_div", func(x *tenon.Exec, a *args) any {
		return x.KLDiv(a.tensor(0, "input"), a.tensor(1, "target"), tenon.KLDivOpt{Reduction: choice[tenon.Reduction](a, 4, "reduction"),
			LogTarget: a.bool(5, "log_target", false)})
	})
	offer("nn.functional.binary_cross_entropy_with_logits", func(x *tenon.Exec, a *args) any {
		return x.BCEWithLogits(a.tensor(0, "input"), a.tensor(1, "target"), tenon.BCEWithLogitsOpt{Weight: a.tensor(2, "weight"),
			PositiveWeight: a.tensor(6, "pos_weight"), Reduction: choice[tenon.Reduction](a, 5, "reduction")})
	})
	offer("nn.functional.batch_norm", func(x *tenon.Exec, a *args) any {
		return x.BatchNorm(a.tensor(0, "input"), a.tensor(3, "weight"), a.tensor(4, "bias"), a.tensor(1, "running_mean"),
			a.tensor(2, "running_var"), tenon.BatchNormOpt{Momentum: a.option(6, "momentum"), Eps: a.option(7, "eps"),
				Training: a.bool(5, "training", false)})
	})
	offer("nn.functional.layer_norm", func(x *tenon.Exec, a *args) any {
		return x.LayerNorm(a.tensor(0, "input"), a.tensor(2, "weight"), a.tensor(3, "bias"), a.ints(1, "normalized_shape"),
			tenon.NormOpt{Eps: a.option(4, "eps")})
	})
	offer("nn.functional.rms_norm", func(x *tenon.Exec, a *args) any {
		return x.RMSNorm(a.tensor(0, "input"), a.tensor(2, "weight"), a.ints(1, "normalized_shape"),
			tenon.NormOpt{Eps: a.option(3, "eps")})
	})
	offer("nn.functional.group_norm", func(x *tenon.Exec, a *args) any {
		return x.GroupNorm(a.tensor(0, "input"), a.tensor(2, "weight"), a.tensor(3, "bias"), a.int(1, "num_groups", 0),
			tenon.NormOpt{Eps: a.option(4, "eps")})
	})
}

// outputSize returns two sizes, 0 for those that are None.
func (a *args) outputSize(i int, name string) [2]int {
	l, ok := a.get(i, name).([]any)
	if !ok {
		return a.pair(i, name, 0)
	}
	var out [2]int
	for j := range out {
		if v := l[min(j, len(l)-1)]; v != nil {
			out[j] = int(v.(int64))
		}
	}
	return out
}

// Distances, and losses composed of other operations.
func init() {
	offer("dist", func(x *tenon.Exec, a *args) any {
		return x.Dist(a.tensor(0, "input"), a.tensor(1, "other"), tenon.DistOpt{P: a.option(2, "p")})
	})
	offer("renorm", func(x *tenon.Exec, a *args) any {
		return x.Renorm(a.tensor(0, "input"), a.float(1, "p", 0), a.int(2, "dim", 0), a.float(3, "maxnorm", 0))
	})
	offer("nn.functional.normalize", func(x *tenon.Exec, a *args) any {
		return x.Normalize(a.tensor(0, "input"), tenon.NormalizeOpt{P: a.option(1, "p"), Dim: new(a.int(2, "dim", 1)),
			Eps: a.option(3, "eps")})
	})
	offer("nn.functional.pairwise_distance", func(x *tenon.Exec, a *args) any {
		return x.PairwiseDistance(a.tensor(0, "x1"), a.tensor(1, "x2"),
			tenon.PairwiseDistanceOpt{P: a.option(2, "p"), Eps: a.option(3, "eps"), KeepDim: a.bool(4, "keepdim", false)})
	})
	offer("nn.functional.cosine_similarity", func(x *tenon.Exec, a *args) any {
		return x.CosineSimilarity(a.tensor(0, "x1"), a.tensor(1, "x2"),
			tenon.CosineSimilarityOpt{Dim: new(a.int(2, "dim", 1)), Eps: a.option(3, "eps")})
	})
	reduction := func(a *args) tenon.Reduction { return choice[tenon.Reduction](a, -1, "reduction") }
	offer("nn.functional.cosine_embedding_loss", func(x *tenon.Exec, a *args) any {
		return x.CosineEmbeddingLoss(a.tensor(0, "input1"), a.tensor(1, "input2"), a.tensor(2, "target"),
			tenon.MarginLossOpt{Margin: a.option(3, "margin"), Reduction: reduction(a)})
	})
	offer("nn.functional.hinge_embedding_loss", func(x *tenon.Exec, a *args) any {
		return x.HingeEmbeddingLoss(a.tensor(0, "input"), a.tensor(1, "target"),
			tenon.MarginLossOpt{Margin: a.option(2, "margin"), Reduction: reduction(a)})
	})
	offer("nn.functional.poisson_nll_loss", func(x *tenon.Exec, a *args) any {
		return x.PoissonNLLLoss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.PoissonNLLLossOpt{Plain: !a.bool(2, "log_input", true),
			Full: a.bool(3, "full", false),
			Eps:  a.option(-1, "eps"), Reduction: choice[tenon.Reduction](a, -1, "reduction")})
	})
	offer("nn.functional.margin_ranking_loss", func(x *tenon.Exec, a *args) any {
		return x.MarginRankingLoss(a.tensor(0, "input1"), a.tensor(1, "input2"), a.tensor(2, "target"),
			tenon.MarginLossOpt{Margin: a.option(3, "margin"), Reduction: reduction(a)})
	})
	offer("nn.functional.triplet_margin_loss", func(x *tenon.Exec, a *args) any {
		return x.TripletMarginLoss(a.tensor(0, "anchor"), a.tensor(1, "positive"), a.tensor(2, "negative"), tenon.TripletMarginLossOpt{
			Margin: a.option(3, "margin"), P: a.option(4, "p"), Eps: a.option(5, "eps"), Swap: a.bool(6, "swap", false),
			Reduction: choice[tenon.Reduction](a, -1, "reduction")})
	})
	offer("nn.functional.soft_margin_loss", func(x *tenon.Exec, a *args) any {
		return x.SoftMarginLoss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.LossOpt{Reduction: reduction(a)})
	})
	offer("nn.functional.multi_margin_loss", func(x *tenon.Exec, a *args) any {
		return x.MultiMarginLoss(a.tensor(0, "input"), a.tensor(1, "target"), tenon.MultiMarginLossOpt{Weight: a.tensor(-1, "weight"),
			Squared: a.int(2, "p", 1) == 2,
			Margin:  a.option(3, "margin"), Reduction: choice[tenon.Reduction](a, -1, "reduction")})
	})
}
