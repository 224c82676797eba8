package nn_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"tenon.dev"
	"tenon.dev/nn"
)

// A network is a container of modules, or a struct with modules as its fields. Parameters have the same names as in PyTorch.
func ExampleSequential() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	g := nn.NewHostGenerator(0) // torch.manual_seed(0)
	net := nn.Sequential{
		nn.NewLinear(x, 4, 3, nn.LinearOpt{Generator: g}), nn.ReLU{},
		nn.NewLinear(x, 3, 2, nn.LinearOpt{Generator: g, NoBias: true}),
	}
	defer nn.Close(net)
	x.Scope(func(x *tenon.Exec) {
		out := net.Forward(x, x.Ones([]int{5, 4}, tenon.Float32))
		fmt.Println(out.Shape())
	})
	for name, p := range nn.Params(net) {
		fmt.Println(name, p.Tensor().Shape())
	}
	// Output:
	// [5 2]
	// 0.weight [3 4]
	// 0.bias [3]
	// 2.weight [2 3]
}

// The state of a trained network is saved and loaded into another network of the same shape.
func ExampleSaveFile() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	folder, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	file := filepath.Join(folder, "model.safetensors")

	learned, fresh := nn.NewLinear(x, 2, 1), nn.NewLinear(x, 2, 1)
	defer nn.Close(learned)
	defer nn.Close(fresh)
	nn.InitConstant(x, learned.Weight.Tensor(), 0.5)
	if err := nn.SaveFile(x, learned, file); err != nil {
		log.Fatal(err)
	}
	if err := nn.LoadFile(x, fresh, file); err != nil {
		log.Fatal(err)
	}
	fmt.Println(tenon.Read[float32](x, fresh.Weight.Tensor()))
	// Output: [0.5 0.5] <nil>
}

// classifier is a network for images: its fields are its modules, and the tags are PyTorch's names.
type classifier struct {
	Conv *nn.Conv2d    `torch:"conv"`
	Norm *nn.BatchNorm `torch:"bn"`
	Drop *nn.Dropout
	Out  *nn.Linear `torch:"fc"`
}

func (c *classifier) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	h := x.ReLU(c.Norm.Forward(x, c.Conv.Forward(x, in)))
	h = x.MaxPool2d(h, [2]int{2, 2})
	return c.Out.Forward(x, c.Drop.Forward(x, x.Flatten(h, 1, -1)))
}

// A custom network is a struct. Eval switches the modules that differ between training and evaluation, here the dropout and the batch
// norm.
func ExampleEval() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	net := &classifier{
		Conv: nn.NewConv2d(x, 1, 4, [2]int{3, 3}, nn.Conv2dOpt{Same: true}),
		Norm: nn.NewBatchNorm2d(x, 4),
		Drop: nn.NewDropout(0.5),
		Out:  nn.NewLinear(x, 4*4*4, 10),
	}
	defer nn.Close(net)
	x.Scope(func(x *tenon.Exec) {
		images := x.RandN([]int{2, 1, 8, 8}, tenon.Float32)
		net.Forward(x, images) // in training: the running statistics move
		nn.Eval(net)
		a, b := net.Forward(x, images), net.Forward(x, images)
		same, err := x.Item(x.All(x.Eq(a, b), nil))
		fmt.Println(a.Shape(), same == 1, err)
	})
	for name := range nn.StateDict(net) {
		fmt.Println(name)
	}
	// Output:
	// [2 10] true <nil>
	// conv.weight
	// conv.bias
	// bn.weight
	// bn.bias
	// bn.running_mean
	// bn.running_var
	// bn.num_batches_tracked
	// fc.weight
	// fc.bias
}

// attention embeds nn.Mode to learn whether it is in training.
type attention struct {
	nn.Mode
	QKV, Out *nn.Linear
	heads    int
	dropout  float64
}

func (a *attention) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	n, length, width := in.Size(0), in.Size(1), in.Size(2)
	parts := x.Split(a.QKV.Forward(x, in), width, 2)
	for i, p := range parts {
		parts[i] = x.Transpose(x.Reshape(p, n, length, a.heads, width/a.heads), 1, 2)
	}
	opt := tenon.AttentionOpt{Causal: true}
	if a.Training() {
		opt.Dropout = a.dropout
	}
	y := x.ScaledDotProductAttention(parts[0], parts[1], parts[2], opt)
	return a.Out.Forward(x, x.Reshape(x.Transpose(y, 1, 2), n, length, width))
}

// Attention with dropout drops weights in training only.
func ExampleMode() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	net := nn.Sequential{&attention{QKV: nn.NewLinear(x, 16, 48), Out: nn.NewLinear(x, 16, 16), heads: 2, dropout: 0.5}}
	defer nn.Close(net)
	x.Scope(func(x *tenon.Exec) {
		in := x.RandN([]int{2, 8, 16}, tenon.Float32)
		equal := func() bool {
			same, err := x.Item(x.All(x.Eq(net.Forward(x, in), net.Forward(x, in)), nil))
			if err != nil {
				log.Fatal(err)
			}
			return same == 1
		}
		fmt.Println("the same twice in training:", equal())
		nn.Eval(net)
		fmt.Println("the same twice in evaluation:", equal())
	})
	fmt.Println(nn.String(net))
	// Output:
	// the same twice in training: false
	// the same twice in evaluation: true
	// Sequential(
	//   (0): attention(
	//     (QKV): Linear(in_features=16, out_features=48, bias=True)
	//     (Out): Linear(in_features=16, out_features=16, bias=True)
	//   )
	// )
}

// tagger gives each word of a sentence one of a few tags. Words are numbers, and 0 stands after a sentence's end.
type tagger struct {
	Words *nn.Embedding `torch:"words"`
	LSTM  *nn.LSTM      `torch:"lstm"`
	Out   *nn.Linear    `torch:"out"`
}

func (m *tagger) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	lengths := x.Sum(x.NeS(in, 0), []int{1})
	out, _, _ := m.LSTM.Forward(x, m.Words.Forward(x, in), nn.LSTMForwardOpt{Lengths: lengths})
	return m.Out.Forward(x, out)
}

// An LSTM reads sentences of different lengths in both directions.
func ExampleLSTM() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	m := &tagger{
		Words: nn.NewEmbedding(x, 100, 8),
		LSTM:  nn.NewLSTM(x, 8, 16, nn.RecurrentOpt{BatchFirst: true, Bidirectional: true}),
		Out:   nn.NewLinear(x, 32, 5),
	}
	defer nn.Close(m)
	x.Scope(func(x *tenon.Exec) {
		in := tenon.From(x, []int64{7, 3, 9, 2, 4, 5, 0, 0}, 2, 4)
		fmt.Println(m.Forward(x, in).Shape())
	})
	fmt.Println(nn.String(m))
	// Output:
	// [2 4 5]
	// tagger(
	//   (words): Embedding(100, 8)
	//   (lstm): LSTM(8, 16, batch_first=True, bidirectional=True)
	//   (out): Linear(in_features=32, out_features=5, bias=True)
	// )
}

// A module is graphed once: after that its forward and backward passes are one launch each.
func ExampleGraph() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	net := nn.Sequential{nn.NewLinear(x, 4, 8), nn.ReLU{}, nn.NewLinear(x, 8, 2)}
	defer nn.Close(net)
	graphed, err := nn.Graph(x, net, x.Zeros([]int{16, 4}, tenon.Float32))
	if err != nil {
		log.Fatal(err)
	}
	defer graphed.Close()
	x.Scope(func(x *tenon.Exec) {
		in := x.RandN([]int{16, 4}, tenon.Float32)
		plain, out := net.Forward(x, in), graphed.Forward(x, in)
		fmt.Println(out.Shape())
		fmt.Println(x.Item(x.Max(x.Abs(x.Sub(out, plain)))))
		if err := x.Backward(x.Sum(out, nil)); err != nil {
			log.Fatal(err)
		}
	})
	for name, p := range nn.Params(graphed) {
		fmt.Println(name, p.Grad().Shape())
	}
	// Output:
	// [16 2]
	// 0 <nil>
	// 0.weight [8 4]
	// 0.bias [8]
	// 2.weight [2 8]
	// 2.bias [2]
}
