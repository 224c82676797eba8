package nn_test

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
)

type printedBlock struct {
	Norm *nn.LayerNorm `torch:"ln"`
	Up   *nn.Linear    `torch:"c_fc"`
	Act  nn.GELU       `torch:"act"`
	Tied *nn.Linear    `torch:"-"`
}

type printedNet struct {
	Table  *nn.Embedding             `torch:"wte"`
	Blocks []*printedBlock           `torch:"h"`
	Heads  map[string]nn.Module      `torch:"heads"`
	Scale  *nn.Param                 `torch:"scale"`
	Absent *nn.Linear                `torch:"absent"`
	Loop   *printedNet               `torch:"loop"`
	Loss   nn.CrossEntropyLoss       `torch:"loss"`
	Hook   func(t *tenon.Tensor)     `torch:"hook"`
	Notes  map[string][]string       `torch:"notes"`
	Sizes  struct{ Width, Deep int } `torch:"sizes"`
}

// Modules print as torch.nn's repr does.
func TestPrint(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	x.Scope(func(x *tenon.Exec) {
		net := &printedNet{Table: nn.NewEmbedding(x, 10, 4, nn.EmbeddingOpt{Lookup: tenon.EmbeddingOpt{Padding: true, PaddingIdx: -1}}),
			Scale: nn.NewParam(x.Ones([]int{1}, tenon.Float32)),
			Heads: map[string]nn.Module{"b": nn.ReLU{}, "a": nn.NewDropout(0.1)}}
		for range 3 {
			net.Blocks = append(net.Blocks, &printedBlock{Norm: nn.NewLayerNorm(x, []int{4}),
				Up: nn.NewLinear(x, 4, 16, nn.LinearOpt{NoBias: true}), Act: nn.GELU{Tanh: true}})
		}
		net.Blocks = append(net.Blocks, &printedBlock{Norm: nn.NewLayerNorm(x, []int{4, 1}, nn.NormOpt{Eps: 1e-6, NoAffine: true}),
			Up: nn.NewLinear(x, 4, 16)})
		net.Loop = net
		graphed, err := nn.Graph(x, nn.Tanh{}, x.Zeros([]int{2}, tenon.Float32))
		if err != nil {
			t.Fatal(err)
		}
		defer graphed.Close()
		for _, c := range []struct{ got, want string }{
			{nn.String(net), `printedNet(
  (wte): Embedding(10, 4, padding_idx=9)
  (h): ModuleList(
    (0-2): 3 x printedBlock(
      (ln): LayerNorm((4,), eps=1e-05, elementwise_affine=True)
      (c_fc): Linear(in_features=4, out_features=16, bias=False)
      (act): GELU(approximate='tanh')
    )
    (3): printedBlock(
      (ln): LayerNorm((4, 1), eps=1e-06, elementwise_affine=False)
      (c_fc): Linear(in_features=4, out_features=16, bias=True)
      (act): GELU(approximate='none')
    )
  )
  (heads): ModuleDict(
    (a): Dropout(p=0.1, inplace=False)
    (b): ReLU()
  )
  (loop): …
  (loss): CrossEntropyLoss()
)`},
			{fmt.Sprint(nn.Sequential{nn.NewConv2d(x, 3, 8, [2]int{3, 5}, nn.Conv2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 0},
				NoBias: true}), nn.NewBatchNorm2d(x, 8),
				nn.Sequential{nn.ReLU{}, nn.ReLU{}}, nn.MaxPool2d{Kernel: [2]int{3, 3}, Opt: tenon.MaxPoolOpt{Stride: [2]int{2, 2}}},
				nn.Flatten{}}), `Sequential(
  (0): Conv2d(3, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 0), bias=False)
  (1): BatchNorm2d(8, eps=1e-05, momentum=0.1, affine=True, track_running_stats=True)
  (2): Sequential(
    (0): ReLU()
    (1): ReLU()
  )
  (3): MaxPool2d(kernel_size=3, stride=2, padding=0, dilation=1, ceil_mode=False)
  (4): Flatten(start_dim=1, end_dim=-1)
)`},
			{fmt.Sprint(nn.NewConv1d(x, 4, 8, 3, nn.Conv1dOpt{Groups: 2, Padding: 1, Dilation: 2})),
				"Conv1d(4, 8, kernel_size=(3,), stride=(1,), padding=(1,), dilation=(2,), groups=2)"},
			{fmt.Sprint(nn.NewConvTranspose2d(x, 16, 8, [2]int{3, 5}, nn.ConvTranspose2dOpt{Stride: [2]int{2, 2}, Padding: [2]int{1, 1},
				OutputPadding: [2]int{1, 0}, Dilation: [2]int{1, 2}, Groups: 4, NoBias: true})),
				"ConvTranspose2d(16, 8, kernel_size=(3, 5), stride=(2, 2), padding=(1, 1), dilation=(1, 2), output_padding=(1, 0), " +
					"groups=4, bias=False)"},
			{fmt.Sprint(nn.Upsample{Scale: []float64{2}}, nn.Upsample{Size: []int{4, 5}, Mode: tenon.InterpolateBilinear},
				nn.Upsample{Scale: []float64{2, 1.5}, Mode: tenon.InterpolateNearestExact}, nn.Upsample{Size: []int{7}}),
				"Upsample(scale_factor=2.0, mode='nearest') Upsample(size=(4, 5), mode='bilinear') " +
					"Upsample(scale_factor=(2.0, 1.5), mode='nearest-exact') Upsample(size=7, mode='nearest')"},
			{fmt.Sprint(nn.NewConvTranspose2d(x, 4, 2, [2]int{2, 2})), "ConvTranspose2d(4, 2, kernel_size=(2, 2), stride=(1, 1))"},
			{fmt.Sprint(nn.NewConv2d(x, 4, 8, [2]int{3, 3}, nn.Conv2dOpt{Same: true})),
				"Conv2d(4, 8, kernel_size=(3, 3), stride=(1, 1), padding=same)"},
			{fmt.Sprint(nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: 2, BatchFirst: true, Dropout: 0.1, Bidirectional: true})),
				"LSTM(3, 4, num_layers=2, batch_first=True, dropout=0.1, bidirectional=True)"},
			{fmt.Sprint(nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: 1, Dropout: 0}), nn.NewGRU(x, 2, 5,
				nn.RecurrentOpt{NoBias: true})), "LSTM(3, 4) GRU(2, 5, bias=False)"},
			{nn.String(&struct {
				RNN *nn.GRU `torch:"rnn"`
			}{nn.NewGRU(x, 2, 5)}), "(\n  (rnn): GRU(2, 5)\n)"},
			{fmt.Sprint(nn.NewGroupNorm(x, 2, 8)), "GroupNorm(2, 8, eps=1e-05, affine=True)"},
			{fmt.Sprint(nn.NewRMSNorm(x, []int{8})), "RMSNorm((8,), eps=None, elementwise_affine=True)"},
			{fmt.Sprint(nn.NewPReLU(x, 1)), "PReLU(num_parameters=1)"},
			{fmt.Sprint(nn.LeakyReLU{}, nn.ELU{}, nn.Hardtanh{}, nn.Softplus{}), "LeakyReLU(negative_slope=0.01) ELU(alpha=1.0) " +
				"Hardtanh(min_val=-1.0, max_val=1.0) Softplus(beta=1.0, threshold=20.0)"},
			{fmt.Sprint(nn.AvgPool2d{Kernel: [2]int{2, 3}}, nn.AdaptiveAvgPool2d{Size: [2]int{1, 1}}, nn.Softmax{Dim: 1}),
				"AvgPool2d(kernel_size=(2, 3), stride=(2, 3), padding=0) AdaptiveAvgPool2d(output_size=1) Softmax(dim=1)"},
			{fmt.Sprint(nn.ReLU{}, nn.ReLU6{}, nn.Sigmoid{}, nn.Tanh{}, nn.SiLU{}, nn.LogSigmoid{}, nn.Identity{}, nn.LogSoftmax{Dim: -1}),
				"ReLU() ReLU6() Sigmoid() Tanh() SiLU() LogSigmoid() Identity() LogSoftmax(dim=-1)"},
			{fmt.Sprint(nn.CrossEntropyLoss{}, nn.NLLLoss{}, nn.MSELoss{}, nn.L1Loss{}, nn.BCEWithLogitsLoss{}, nn.SmoothL1Loss{},
				nn.HuberLoss{}, nn.BCELoss{}, nn.KLDivLoss{}),
				"CrossEntropyLoss() NLLLoss() MSELoss() L1Loss() BCEWithLogitsLoss() SmoothL1Loss() HuberLoss() BCELoss() KLDivLoss()"},
			{fmt.Sprint(nn.NewBatchNorm1d(x, 3, nn.BatchNormOpt{Cumulative: true, NoAffine: true}), nn.NewPReLU(x, 4), nn.NewDropout(.5)),
				"BatchNorm1d(3, eps=1e-05, momentum=None, affine=False, track_running_stats=True) " +
					"PReLU(num_parameters=4) Dropout(p=0.5, inplace=False)"},
			{fmt.Sprint(nn.NewEmbedding(x, 5, 2, nn.EmbeddingOpt{Lookup: tenon.EmbeddingOpt{MaxNorm: 1, NormType: 1,
				ScaleGradByFreq: true}})),
				"Embedding(5, 2, max_norm=1.0, norm_type=1.0, scale_grad_by_freq=True)"},
			{fmt.Sprint(graphed, nn.Sequential{graphed}, (*nn.Graphed)(nil)), "Tanh() Sequential(\n  (0): Tanh()\n) nil"},
			{fmt.Sprint((*nn.Linear)(nil), &nn.BatchNorm{}, nn.Sequential{}, nn.Sequential{nil}, nn.Sequential{(*nn.Linear)(nil)}),
				"nil BatchNorm(0, eps=0.0, momentum=0.0, affine=True, track_running_stats=True) Sequential() Sequential(\n  (0): nil\n) " +
					"Sequential(\n  (0): nil\n)"},
		} {
			if c.got != c.want {
				t.Errorf("got\n%s\nwant\n%s", c.got, c.want)
			}
		}
	})
}

// An option that is no number, which Forward refuses, prints as it is, and numbers that are not finite print as PyTorch prints them.
func TestPrintOptions(t *testing.T) {
	x := testdevice.Open(t, tenon.CPU())
	nan, inf := math.NaN(), math.Inf(1)
	table := func(opt tenon.EmbeddingOpt) *nn.Embedding {
		return nn.NewEmbedding(x, 3, 2, nn.EmbeddingOpt{Lookup: opt})
	}
	in := x.Ones([]int{1}, tenon.Float32)
	for want, m := range map[string]nn.Module{
		"LeakyReLU(negative_slope=0)":                        nn.LeakyReLU{Slope: "0"},
		"ELU(alpha=[0 1])":                                   nn.ELU{Alpha: []float64{0, 1}},
		"Hardtanh(min_val=nil tensor, max_val=true)":         nn.Hardtanh{Min: (*tenon.Tensor)(nil), Max: true},
		"Softplus(beta=(0+1i), threshold=map[])":             nn.Softplus{Beta: 1i, Threshold: map[string]int{}},
		"Embedding(3, 2, max_norm=one)":                      table(tenon.EmbeddingOpt{MaxNorm: "one"}),
		"Embedding(3, 2, max_norm=1.0, norm_type=two)":       table(tenon.EmbeddingOpt{MaxNorm: 1, NormType: "two"}),
		"Sequential(\n  (0): LeakyReLU(negative_slope=x)\n)": nn.Sequential{nn.LeakyReLU{Slope: "x"}},
	} {
		if got := fmt.Sprint(m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if err := tenon.Try(func() { m.Forward(x, in) }); err == nil || !strings.Contains(err.Error(), "give a real number") {
			t.Errorf("Forward of %s: %v", want, err)
		}
	}
	for want, m := range map[string]any{
		"LeakyReLU(negative_slope=nan)":                nn.LeakyReLU{Slope: nan},
		"Hardtanh(min_val=-inf, max_val=inf)":          nn.Hardtanh{Min: -inf, Max: inf},
		"Embedding(3, 2, max_norm=inf, norm_type=inf)": table(tenon.EmbeddingOpt{MaxNorm: inf, NormType: inf}),
		"Embedding(3, 2, max_norm=1.0)":                table(tenon.EmbeddingOpt{MaxNorm: 1, NormType: 2}),
		"Softplus(beta=1e+16, threshold=1e-05)":        nn.Softplus{Beta: 1e16, Threshold: 1e-5},
		"Upsample(scale_factor=inf, mode='nearest')":   nn.Upsample{Scale: []float64{inf}},
		"Upsample(size=2, mode='InterpolateMode(99)')": nn.Upsample{Size: []int{2}, Mode: 99},
	} {
		if got := fmt.Sprint(m); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
