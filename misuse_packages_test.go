package tenon_test

import (
	"bufio"
	"io"
	"iter"
	"maps"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/cuda"
	"tenon.dev/cuda/nvtx"
	"tenon.dev/data"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/kernel"
	"tenon.dev/kernel/kmath"
	"tenon.dev/linalg"
	"tenon.dev/memcheck"
	"tenon.dev/memviz"
	"tenon.dev/memviz/replay"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/profile"
	"tenon.dev/safetensors"
	"tenon.dev/sparse"
	"tenon.dev/torchfile"
)

// functions are the functions of the public packages that TestMisuseOfPackages calls. Generic ones are instantiated with one type.
var functions = map[string]any{
	"tenon.CUDA": tenon.CUDA, "tenon.From": tenon.From[float32], "tenon.In": tenon.In, "tenon.Mapped": tenon.Mapped,
	"tenon.Integer": tenon.Integer[int64], "tenon.Number": tenon.Number,
	"tenon.Open": tenon.Open, "tenon.Out": tenon.Out, "tenon.Over": tenon.Over, "tenon.Read": tenon.Read[float32], "tenon.Sim": tenon.Sim,
	"tenon.Span": tenon.Span, "tenon.SimMachine": tenon.SimMachine, "tenon.Try": tenon.Try,
	"tenon.Best": tenon.Best, "tenon.CPU": tenon.CPU,
	"tenon.GPUs": tenon.GPUs, "tenon.ParseSelector": tenon.ParseSelector,

	"cuda.NewGenerator": cuda.NewGenerator, "cuda.SnapshotOf": cuda.SnapshotOf, "cuda.NewMemPool": cuda.NewMemPool,
	"cuda.NewPoolID": cuda.NewPoolID, "cuda.ReadSnapshot": cuda.ReadSnapshot,
	"cuda.ReadSnapshotFile": cuda.ReadSnapshotFile, "cuda.CheckError": cuda.CheckError,
	"profile.Categories": profile.Categories, "profile.DeviceOf": profile.DeviceOf, "profile.Read": profile.Read,
	"nvtx.Listening": nvtx.Listening, "nvtx.Mark": nvtx.Mark, "nvtx.Pop": nvtx.Pop, "nvtx.Push": nvtx.Push, "nvtx.Start": nvtx.Start,

	"compile.New": compile.New, "compile.Break": compile.Break, "compile.Frozen": compile.Frozen, "compile.Disable": compile.Disable,
	"compile.ExplainTrees": compile.ExplainTrees, "compile.ReadExplanations": compile.ReadExplanations,
	"compile.Func":     compile.Func[func(*tenon.Exec)],
	"compile.MarkStep": compile.MarkStep, "compile.Reset": compile.Reset, "compile.TreesOf": compile.TreesOf, "linalg.Cross": linalg.Cross,
	"linalg.MultiDot":    linalg.MultiDot,
	"linalg.NuclearNorm": linalg.NuclearNorm, "linalg.VecDot": linalg.VecDot, "linalg.CrossInto": linalg.CrossInto,
	"linalg.MultiDotInto":    linalg.MultiDotInto,
	"linalg.NuclearNormInto": linalg.NuclearNormInto, "linalg.VecDotInto": linalg.VecDotInto,

	"nn.Buffers": nn.Buffers, "nn.Checkpoint": nn.Checkpoint, "nn.CheckpointSequential": nn.CheckpointSequential, "nn.Close": nn.Close,
	"nn.Eval": nn.Eval, "nn.Gain": nn.Gain, "nn.InitConstant": nn.InitConstant, "nn.InitEye": nn.InitEye,
	"nn.InitKaimingNormal": nn.InitKaimingNormal, "nn.InitKaimingUniform": nn.InitKaimingUniform, "nn.InitNormal": nn.InitNormal,
	"nn.InitUniform":      nn.InitUniform,
	"nn.InitXavierNormal": nn.InitXavierNormal, "nn.InitXavierUniform": nn.InitXavierUniform, "nn.ClipGradNorm": nn.ClipGradNorm,
	"nn.Graph": nn.Graph, "nn.GraphCallables": nn.GraphCallables, "nn.ClipGradValue": nn.ClipGradValue, "nn.Load": nn.Load,
	"nn.LoadFile": nn.LoadFile, "nn.SaveFile": nn.SaveFile, "nn.NewBatchNorm1d": nn.NewBatchNorm1d,
	"nn.NewBatchNorm2d": nn.NewBatchNorm2d, "nn.NewBuffer": nn.NewBuffer, "nn.NewConv1d": nn.NewConv1d, "nn.NewConv2d": nn.NewConv2d,
	"nn.NewConvTranspose2d": nn.NewConvTranspose2d,
	"nn.NewDropout":         nn.NewDropout,
	"nn.NewEmbedding":       nn.NewEmbedding, "nn.NewGroupNorm": nn.NewGroupNorm, "nn.NewHostGenerator": nn.NewHostGenerator,
	"nn.NewLayerNorm": nn.NewLayerNorm, "nn.NewLSTM": nn.NewLSTM, "nn.NewGRU": nn.NewGRU,
	"nn.NewMultiheadAttention": nn.NewMultiheadAttention,
	"nn.NewLinear":             nn.NewLinear, "nn.NewPReLU": nn.NewPReLU, "nn.NewParam": nn.NewParam, "nn.NewRMSNorm": nn.NewRMSNorm,
	"nn.NumParams": nn.NumParams, "nn.Params": nn.Params, "nn.SplitParams": nn.SplitParams,
	"nn.StateDict": nn.StateDict, "nn.String": nn.String, "nn.Scoped": nn.Scoped[any], "nn.SetRequiresGrad": nn.SetRequiresGrad,
	"nn.To":             nn.To,
	"nn.ToChannelsLast": nn.ToChannelsLast, "nn.ToDType": nn.ToDType, "nn.Train": nn.Train,

	"optim.NewAdam": optim.NewAdam, "optim.NewAdamW": optim.NewAdamW, "optim.NewSGD": optim.NewSGD,
	"optim.NewNAdam": optim.NewNAdam, "optim.NewRAdam": optim.NewRAdam, "optim.NewAdamax": optim.NewAdamax,
	"optim.NewAdagrad": optim.NewAdagrad, "optim.NewAdadelta": optim.NewAdadelta, "optim.NewASGD": optim.NewASGD,
	"optim.NewRMSprop": optim.NewRMSprop, "optim.NewRprop": optim.NewRprop,
	"optim.NewGradScaler": optim.NewGradScaler, "optim.SaveFile": optim.SaveFile, "optim.LoadFile": optim.LoadFile,
	"optim.StateDict": optim.StateDict, "optim.LoadStateDict": optim.LoadStateDict,
	"optim.NewSchedule": optim.NewSchedule, "optim.NewReduceLROnPlateau": optim.NewReduceLROnPlateau, "optim.LambdaLR": optim.LambdaLR,
	"optim.MultiplicativeLR": optim.MultiplicativeLR, "optim.StepLR": optim.StepLR, "optim.MultiStepLR": optim.MultiStepLR,
	"optim.ConstantLR": optim.ConstantLR,
	"optim.LinearLR":   optim.LinearLR, "optim.ExponentialLR": optim.ExponentialLR, "optim.PolynomialLR": optim.PolynomialLR,
	"optim.CosineAnnealingLR":           optim.CosineAnnealingLR,
	"optim.CosineAnnealingWarmRestarts": optim.CosineAnnealingWarmRestarts, "optim.OneCycleLR": optim.OneCycleLR,
	"optim.CyclicLR":     optim.CyclicLR,
	"optim.SequentialLR": optim.SequentialLR, "optim.ChainedScheduler": optim.ChainedScheduler,

	"data.NewColumn": data.NewColumn[float32], "data.NewLoader": data.NewLoader, "data.NewTable": data.NewTable,

	"sparse.NewCOO": sparse.NewCOO,

	"safetensors.New": safetensors.New, "safetensors.Open": safetensors.Open, "safetensors.Save": safetensors.Save,
	"safetensors.Write": safetensors.Write,

	"dtype.AsBytes": dtype.AsBytes[float32], "dtype.BF16FromFloat32": dtype.BF16FromFloat32, "dtype.BF16FromFloat64": dtype.BF16FromFloat64,
	"dtype.F16FromFloat32": dtype.F16FromFloat32, "tenon.F16FromFloat32": tenon.F16FromFloat32,
	"tenon.BF16FromFloat32": tenon.BF16FromFloat32, "dtype.F16FromFloat64": dtype.F16FromFloat64, "dtype.Float64At": dtype.Float64At,
	"dtype.Of":    dtype.Of[float32],
	"dtype.Parse": dtype.Parse, "dtype.Promote": dtype.Promote,

	"fault.KindOf": fault.KindOf, "kernel.Build": kernel.Build,

	"memcheck.AssignGPUs": memcheck.AssignGPUs, "memcheck.CheckerAt": memcheck.CheckerAt, "memcheck.ChooseChecker": memcheck.ChooseChecker,
	"memcheck.CreateJournal": memcheck.CreateJournal, "memcheck.DefaultLibraries": memcheck.DefaultLibraries,
	"memcheck.Digest":           memcheck.Digest,
	"memcheck.EnvironmentShard": memcheck.EnvironmentShard, "memcheck.FindChecker": memcheck.FindChecker,
	"memcheck.OpenTarget":  memcheck.OpenTarget,
	"memcheck.ParseReport": memcheck.ParseReport, "memcheck.ReadJournal": memcheck.ReadJournal,
	"memcheck.ReadResults":   memcheck.ReadResults,
	"memcheck.ResumeJournal": memcheck.ResumeJournal, "memcheck.TenonChecker": memcheck.TenonChecker,
	"memcheck.VisibleGPUs": memcheck.VisibleGPUs,

	"torchfile.New": torchfile.New, "torchfile.Decode": torchfile.Decode, "torchfile.Open": torchfile.Open,
	"torchfile.Save": torchfile.Save, "torchfile.Tensors": torchfile.Tensors, "torchfile.Write": torchfile.Write,

	"memviz.Import": memviz.Import, "memviz.Open": memviz.Open, "memviz.WriteCompare": memviz.WriteCompare,
	"memviz.WriteFlameGraph": memviz.WriteFlameGraph, "memviz.WriteHolders": memviz.WriteHolders, "memviz.WriteMemory": memviz.WriteMemory,
	"replay.Read": replay.Read, "replay.Sort": replay.Sort,

	"memviz.WriteSegments": memviz.WriteSegments, "memviz.WriteStatic": memviz.WriteStatic, "memviz.WriteStats": memviz.WriteStats,
	"memviz.WriteTrace": memviz.WriteTrace, "memviz.WriteTrees": memviz.WriteTrees,
}

// types are samples of the types whose methods it calls; pointers are nil.
var types = []any{
	tenon.All,
	(*cuda.Device)(nil), (*cuda.Stream)(nil), (*cuda.Event)(nil), (*cuda.Generator)(nil), (*cuda.MemPool)(nil),
	(*cuda.PoolCheckpoint)(nil), (*cuda.Snapshot)(nil),
	(*cuda.Profiler)(nil), (*profile.Profile)(nil), (*profile.Op)(nil), profile.Tensor{},
	cuda.HostStats{}, (*tenon.Graph)(nil), (*tenon.FunctionContext)(nil), tenon.CPU(),
	(*nn.BatchNorm)(nil), (*nn.Buffer)(nil), (*nn.Conv1d)(nil), (*nn.Conv2d)(nil), (*nn.ConvTranspose2d)(nil), (*nn.Dropout)(nil),
	(*nn.Embedding)(nil), (*nn.GroupNorm)(nil), (*nn.GraphedCallable)(nil), (*nn.Graphed)(nil), (*nn.LayerNorm)(nil), (*nn.Mode)(nil),
	cuda.UUID{},
	nvtx.Range{},
	(*nn.LSTM)(nil), (*nn.GRU)(nil), (*nn.MultiheadAttention)(nil),
	(*nn.Linear)(nil), (*nn.PReLU)(nil), (*nn.Param)(nil), (*nn.RMSNorm)(nil), nn.AdaptiveAvgPool2d{}, nn.Upsample{}, nn.AvgPool2d{},
	nn.BCELoss{},
	nn.BCEWithLogitsLoss{}, nn.CrossEntropyLoss{}, nn.ELU{}, nn.Flatten{},
	nn.Func(nil), nn.GELU{}, nn.Hardtanh{}, nn.HuberLoss{}, nn.Identity{}, nn.KLDivLoss{}, nn.L1Loss{}, nn.LeakyReLU{}, nn.LogSigmoid{},
	nn.LogSoftmax{}, nn.MSELoss{}, nn.MaxPool2d{}, nn.NLLLoss{}, nn.SmoothL1Loss{},
	nn.ReLU{}, nn.ReLU6{}, nn.Sequential(nil), nn.SiLU{}, nn.Sigmoid{}, nn.Softmax{}, nn.Softplus{}, nn.Tanh{},
	(*optim.Adam)(nil), (*optim.AdamW)(nil), (*optim.SGD)(nil), (*optim.GradScaler)(nil), (*optim.Checkpoint)(nil),
	(*optim.NAdam)(nil), (*optim.RAdam)(nil), (*optim.Adamax)(nil), (*optim.Adagrad)(nil), (*optim.Adadelta)(nil), (*optim.ASGD)(nil),
	(*optim.RMSprop)(nil), (*optim.Rprop)(nil),
	(*optim.Schedule)(nil), (*optim.ReduceLROnPlateau)(nil), optim.Rule{},
	(*sparse.COO)(nil), (*compile.Region)(nil), (*compile.Tree)(nil), (*compile.Explanation)(nil), (*compile.TimelineRow)(nil),
	(*compile.Kernel)(nil), (*compile.Cut)(nil), (*compile.Segment)(nil), compile.Reason{}, compile.Recomputed{}, compile.Stats{},
	(*data.Loader)(nil), (*data.Table)(nil), data.Field{}, data.Subset{},
	(*torchfile.Dict)(nil), (*torchfile.File)(nil), (*torchfile.Tensor)(nil), torchfile.Global{}, torchfile.Limits{},
	(*memviz.Recording)(nil), (*memviz.Server)(nil), (*replay.Program)(nil), replay.Check{}, replay.Calls{}, (*memcheck.Journal)(nil),
	(*memcheck.Run)(nil),
	(*safetensors.File)(nil), safetensors.Info{}, dtype.Float32, dtype.F16(0), dtype.BF16(0), (*fault.Error)(nil), fault.Invalid,
	(*kernel.Kernel)(nil),
}

// TestMisuseOfPackages: what TestMisuseWalk says of operations holds of the public packages.
func TestMisuseOfPackages(t *testing.T) {
	fresh := func() *tenon.Exec {
		x, err := tenon.Open(tenon.Sim(1 << 30))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		return x
	}
	t.Chdir(t.TempDir())
	w := newWalk(t, fresh(), fresh())
	w.again = fresh
	w.packages()
	for _, name := range slices.Sorted(maps.Keys(functions)) {
		f := reflect.ValueOf(functions[name])
		if f.Type().NumOut() == 1 && f.Type().Out(0) == reflect.TypeFor[optim.Rule]() {
			f = w.scheduled(f)
		}
		w.function(name, f)
	}
	for _, sample := range types {
		methods(sample, func(name string, f reflect.Value) {
			if _, ok := sample.(*cuda.Device); ok {
				w.x = fresh() // the calls change its settings
			}
			w.function(name, f)
		})
	}
	w.x = fresh()
	step := func(f func(x *tenon.Exec) error) {
		w.run("a nil optimizer's method", "a nil optimizer", func(x *tenon.Exec) error { return returned{f(x)} })
	}
	step((*optim.SGD)(nil).Step)
	step((*optim.Adam)(nil).Step)
	step((*optim.AdamW)(nil).Step)
	step((*optim.NAdam)(nil).Step)
	step((*optim.RAdam)(nil).Step)
	step((*optim.Adamax)(nil).Step)
	step((*optim.Adagrad)(nil).Step)
	step((*optim.Adadelta)(nil).Step)
	step((*optim.ASGD)(nil).Step)
	step((*optim.RMSprop)(nil).Step)
	step((*optim.Rprop)(nil).Step)
	step(func(x *tenon.Exec) error { return (*optim.SGD)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.Adam)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.AdamW)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.NAdam)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.RAdam)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.Adamax)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.Adagrad)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.Adadelta)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.ASGD)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.RMSprop)(nil).Add(nil) })
	step(func(x *tenon.Exec) error { return (*optim.Rprop)(nil).Add(nil) })
	for msg, what := range w.said {
		t.Logf("%s\n\t\t%s", msg, what)
	}
}

// packages adds values of the public packages' types.
//
//tenon:table of values, a line or two each
func (w *walk) packages() {
	made := func(name string, f func(x *tenon.Exec) any) value { return value{name: name, make: f} }
	linear := func(x *tenon.Exec) *nn.Linear { return nn.NewLinear(x, 2, 2) }
	w.add((*nn.Linear)(nil), made("made", func(x *tenon.Exec) any { return linear(x) }), bad("nil", (*nn.Linear)(nil)),
		good("zero", new(nn.Linear)))
	w.add((*nn.Conv1d)(nil), made("made", func(x *tenon.Exec) any { return nn.NewConv1d(x, 2, 2, 1) }), bad("nil", (*nn.Conv1d)(nil)),
		good("zero", new(nn.Conv1d)))
	w.add((*nn.LSTM)(nil), made("made", func(x *tenon.Exec) any { return nn.NewLSTM(x, 2, 2) }), bad("nil", (*nn.LSTM)(nil)),
		good("zero", new(nn.LSTM)))
	w.add((*nn.GRU)(nil), made("made", func(x *tenon.Exec) any { return nn.NewGRU(x, 2, 2) }), bad("nil", (*nn.GRU)(nil)),
		good("zero", new(nn.GRU)))
	w.add((*nn.MultiheadAttention)(nil), made("made", func(x *tenon.Exec) any { return nn.NewMultiheadAttention(x, 2, 1) }),
		bad("nil", (*nn.MultiheadAttention)(nil)), good("zero", new(nn.MultiheadAttention)))
	w.add((*nn.Param)(nil), made("made", func(x *tenon.Exec) any { return nn.NewParam(x.Ones([]int{2}, tenon.Float32)) }),
		good("nil", (*nn.Param)(nil)), good("zero", new(nn.Param)))
	w.add((*nn.Buffer)(nil), made("made", func(x *tenon.Exec) any { return nn.NewBuffer(x.Ones([]int{2}, tenon.Float32)) }),
		good("nil", (*nn.Buffer)(nil)), good("zero", new(nn.Buffer)))
	w.add((*nn.Mode)(nil), good("zero", new(nn.Mode)), bad("nil", (*nn.Mode)(nil)))
	w.add((*any)(nil), made("module", func(x *tenon.Exec) any { return linear(x) }), made("nil", func(*tenon.Exec) any { return nil }),
		good("nil module", (*nn.Linear)(nil)),
		good("zero module", new(nn.Linear)), good("number", 3), good("empty parameter", &nn.Linear{Weight: new(nn.Param)}))
	w.add((*nn.Module)(nil), made("module", func(x *tenon.Exec) any { return linear(x) }),
		made("nil", func(*tenon.Exec) any { return nil }), good("nil module", (*nn.Linear)(nil)))
	type params = iter.Seq2[string, *nn.Param]
	of := func(name string, f func(x *tenon.Exec) *nn.Param) value {
		return made(name, func(x *tenon.Exec) any {
			p := f(x)
			return params(func(yield func(string, *nn.Param) bool) { yield("p", p) })
		})
	}
	w.add(params(nil), made("module's", func(x *tenon.Exec) any { return nn.Params(linear(x)) }), bad("nil", params(nil)),
		of("nil one", func(*tenon.Exec) *nn.Param { return nil }), of("zero one", func(*tenon.Exec) *nn.Param { return new(nn.Param) }),
		of("closed one", func(x *tenon.Exec) *nn.Param { p := nn.NewParam(x.Ones([]int{2}, tenon.Float32)); p.Close(); return p }),
		of("complex one", func(x *tenon.Exec) *nn.Param { return nn.NewParam(x.Ones([]int{2}, tenon.Complex64)) }))
	sgd := func(x *tenon.Exec) any {
		l := linear(x)
		l.Weight.SetGrad(x.Ones([]int{2, 2}, tenon.Float32))
		o, err := optim.NewSGD(nn.Params(l), optim.SGDOpt{Momentum: 0.9})
		if err != nil {
			w.t.Fatal(err)
		}
		return o
	}
	w.add((*optim.SGD)(nil), made("made", sgd), good("zero", new(optim.SGD)))
	w.add((*optim.Adam)(nil), good("zero", new(optim.Adam)))
	w.add((*optim.AdamW)(nil), good("zero", new(optim.AdamW)))
	w.add((*optim.NAdam)(nil), good("zero", new(optim.NAdam)))
	w.add((*optim.RAdam)(nil), good("zero", new(optim.RAdam)))
	w.add((*optim.Adamax)(nil), good("zero", new(optim.Adamax)))
	w.add((*optim.Adagrad)(nil), good("zero", new(optim.Adagrad)))
	w.add((*optim.Adadelta)(nil), good("zero", new(optim.Adadelta)))
	w.add((*optim.ASGD)(nil), good("zero", new(optim.ASGD)))
	w.add((*optim.RMSprop)(nil), good("zero", new(optim.RMSprop)))
	w.add((*optim.Rprop)(nil), good("zero", new(optim.Rprop)))
	w.add((*optim.GradScaler)(nil), made("made", func(x *tenon.Exec) any {
		s, err := optim.NewGradScaler()
		if err != nil {
			w.t.Fatal(err)
		}
		s.Scale(x, x.Ones(nil, tenon.Float32))
		return s
	}), bad("nil", (*optim.GradScaler)(nil)), bad("zero", new(optim.GradScaler)))
	w.add((*optim.Optimizer)(nil), made("SGD", sgd), made("nil", func(*tenon.Exec) any { return nil }), good("nil SGD", (*optim.SGD)(nil)),
		good("zero SGD", new(optim.SGD)))
	w.add(optim.Rule{}, good("sound", optim.StepLR(2, 0.5)), bad("zero", optim.Rule{}), bad("unsound", optim.StepLR(0, 0.5)))
	w.add((*optim.Schedule)(nil), made("made", func(x *tenon.Exec) any {
		s, err := optim.NewSchedule(sgd(x).(optim.Optimizer), optim.OneCycleLR([]float64{1}, 9))
		if err != nil {
			w.t.Fatal(err)
		}
		return s
	}), bad("nil", (*optim.Schedule)(nil)), bad("zero", new(optim.Schedule)))
	w.add((*optim.ReduceLROnPlateau)(nil), made("made", func(x *tenon.Exec) any {
		s, err := optim.NewReduceLROnPlateau(sgd(x).(optim.Optimizer), 0)
		if err != nil {
			w.t.Fatal(err)
		}
		return s
	}), bad("nil", (*optim.ReduceLROnPlateau)(nil)), bad("zero", new(optim.ReduceLROnPlateau)))
	table, err := data.NewTable(data.NewColumn([]float32{1, 2, 3, 4}, 2))
	if err != nil {
		w.t.Fatal(err)
	}
	w.add((*data.Dataset)(nil), good("table", table), made("nil", func(*tenon.Exec) any { return nil }),
		good("nil table", (*data.Table)(nil)), good("zero table", new(data.Table)),
		good("rows that are not there", data.Subset{Of: table, Rows: []int{0, 7, -1}}),
		good("subset of nothing", data.Subset{Rows: []int{0}}))
	w.add((*data.Table)(nil), good("table", table), bad("nil", (*data.Table)(nil)), good("zero", new(data.Table)))
	w.add((*compile.Tree)(nil), made("made", func(*tenon.Exec) any { return new(compile.Tree) }), good("nil", (*compile.Tree)(nil)))
	w.add((*compile.Region)(nil), made("made", func(*tenon.Exec) any { return compile.New() }), bad("nil", (*compile.Region)(nil)),
		bad("zero", new(compile.Region)))
	none := (func(*tenon.Exec) error)(nil)
	w.add(none, good("step", func(x *tenon.Exec) error { x.Ones([]int{2}, tenon.Float32); return nil }), bad("nil", none))
	w.add((*optim.Checkpoint)(nil), good("zero", new(optim.Checkpoint)), bad("nil", (*optim.Checkpoint)(nil)), bad("extra",
		&optim.Checkpoint{Extra: 1}))
	w.add((*data.Loader)(nil), made("made", func(*tenon.Exec) any {
		l, err := data.NewLoader(table)
		if err != nil {
			w.t.Fatal(err)
		}
		return l
	}), bad("nil", (*data.Loader)(nil)), good("zero", new(data.Loader)))
	w.add((*io.Reader)(nil), good("empty", strings.NewReader("")), good("text", strings.NewReader("nonsense\x80\x04")),
		made("nil", func(*tenon.Exec) any { return nil }))
	w.add((*io.ReaderAt)(nil), good("empty", strings.NewReader("")), good("text", strings.NewReader("nonsense\x80\x04")),
		made("nil", func(*tenon.Exec) any { return nil }))
	w.add((*io.Writer)(nil), good("discard", io.Discard), made("nil", func(*tenon.Exec) any { return nil }))
	w.add(map[string]*tenon.Tensor(nil), good("nil", map[string]*tenon.Tensor(nil)), made("tensor", func(x *tenon.Exec) any {
		return map[string]*tenon.Tensor{"weight": x.Ones([]int{2, 2}, tenon.Float32)}
	}), good("nil tensor", map[string]*tenon.Tensor{"weight": nil, "bias": new(tenon.Tensor)}))
	w.add([]float32(nil), good("nil", []float32(nil)), good("3", []float32{1, 2, 3}))
	w.add((*fault.Error)(nil), good("new", fault.New(fault.Invalid, "the thing is wrong; mend it")), bad("zero", new(fault.Error)))
	w.add((*torchfile.File)(nil), bad("nil", (*torchfile.File)(nil)), good("zero", new(torchfile.File)))
	w.add((*torchfile.Tensor)(nil), bad("nil", (*torchfile.Tensor)(nil)), good("zero", new(torchfile.Tensor)))
	w.add((*torchfile.Dict)(nil), good("new", &torchfile.Dict{Keys: []any{"a"}, Values: []any{1}}), good("nil", (*torchfile.Dict)(nil)),
		good("zero", new(torchfile.Dict)))
	w.add((*safetensors.File)(nil), bad("nil", (*safetensors.File)(nil)), bad("zero", new(safetensors.File)))
	w.add((*cuda.Profiler)(nil), bad("nil", (*cuda.Profiler)(nil)), bad("zero", new(cuda.Profiler)))
	w.add((*profile.Profile)(nil), good("zero", new(profile.Profile)), good("nil", (*profile.Profile)(nil)),
		good("damaged", &profile.Profile{Ops: []profile.Op{{Forward: 7, Calls: []int{3}}}}))
	w.add((*profile.Op)(nil), good("zero", new(profile.Op)), good("nil", (*profile.Op)(nil)))
	w.add((*cuda.Snapshot)(nil), made("own", func(x *tenon.Exec) any {
		s, err := x.Device().Snapshot()
		if err != nil {
			w.t.Fatal(err)
		}
		return s
	}), bad("nil", (*cuda.Snapshot)(nil)), bad("zero", new(cuda.Snapshot)))
}

// scheduled returns a function with the arguments of f, which returns a rule. The function applies the rule for a few steps, which is
// where its mistakes show.
func (w *walk) scheduled(f reflect.Value) reflect.Value {
	var in []reflect.Type
	for i := range f.Type().NumIn() {
		in = append(in, f.Type().In(i))
	}
	of := w.of(reflect.TypeFor[optim.Optimizer]())[0]
	return reflect.MakeFunc(reflect.FuncOf(in, []reflect.Type{reflect.TypeFor[error]()}, f.Type().IsVariadic()),
		func(args []reflect.Value) []reflect.Value {
			call := f.Call
			if f.Type().IsVariadic() {
				call = f.CallSlice
			}
			s, err := optim.NewSchedule(of.make(w.x).(optim.Optimizer), call(args)[0].Interface().(optim.Rule))
			for i := 0; i < 3 && err == nil; i++ {
				err = s.Step()
			}
			return []reflect.Value{reflect.ValueOf(&err).Elem()}
		})
}

// kernelTypes are samples of the types that kernels are built with.
var kernelTypes = []any{(*kernel.Builder)(nil), kernel.Array{}, kernel.Buffer{}, kernel.TensorMap{}, kernel.Tile{},
	kernel.Value{}, kernel.Var{}}

// kernelFunctions are functions that record a part of a kernel.
var kernelFunctions = map[string]any{
	"kmath.Exp": kmath.Exp, "kmath.Exp2": kmath.Exp2, "kmath.Expm1": kmath.Expm1, "kmath.Log": kmath.Log, "kmath.Log2": kmath.Log2,
	"kmath.Log10": kmath.Log10, "kmath.Log1p": kmath.Log1p, "kmath.Rsqrt": kmath.Rsqrt, "kmath.Sin": kmath.Sin, "kmath.Cos": kmath.Cos,
	"kmath.Tan": kmath.Tan, "kmath.Tanh": kmath.Tanh, "kmath.Sigmoid": kmath.Sigmoid, "kmath.Erf": kmath.Erf, "kmath.Erfc": kmath.Erfc,
	"kmath.Pow": kmath.Pow,
}

// TestMisuseOfKernels: whatever the builder is called with, a mistake in a kernel becomes the kernel's error.
func TestMisuseOfKernels(t *testing.T) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w := newWalk(t, x, x)
	var k *kernel.Builder // of the kernel that is being built
	now := func(name string, f func() any) value {
		return value{name: name, make: func(*tenon.Exec) any { return f() }}
	}
	w.add((*kernel.Builder)(nil), now("own", func() any { return k }))
	w.add(kernel.Value{}, now("int", func() any { return k.I32(1) }), now("float", func() any { return k.F32(1) }),
		now("bool", func() any { return k.Bool(true) }),
		now("thread", func() any { return k.ThreadIdx(0) }), now("half", func() any { return k.Const(dtype.Float16, 1) }),
		bad("zero", kernel.Value{}),
		now("double", func() any { return k.F64(1) }))
	w.add(kernel.Var{}, now("var", func() any { return k.Var(k.I32(1)) }), bad("zero", kernel.Var{}))
	w.add(kernel.Buffer{}, now("buffer", func() any { return k.Buffer("p", tenon.Float32) }),
		now("read-only", func() any { return k.BufferRO("q", tenon.Int64) }), bad("zero", kernel.Buffer{}))
	w.add(kernel.Array{}, now("shared", func() any { return k.Shared("s", tenon.Float32, 8) }),
		now("local", func() any { return k.Local("l", tenon.Float32, 4) }),
		now("params", func() any {
			return k.Params("a", tenon.Int32, 4)
		}), now("table", func() any { return k.TableF32("t", []float32{1, 2}) }), bad("zero", kernel.Array{}))
	w.add(kernel.TensorMap{}, now("map", func() any { return k.TensorMap("m") }), bad("zero", kernel.TensorMap{}))
	w.add(kernel.Tile{}, now("tile", func() any { return k.Tile("m", tenon.Float32, 16, 16) }), bad("zero", kernel.Tile{}))
	w.foreign()
	handed := []string{"Type", "Builder", "Streaming", "Addr", "At"} // pass their argument on; the call that uses it is refused
	call := func(name string, f reflect.Value, args []value, must string) {
		w.run(describe(name, args), must, func(x *tenon.Exec) (err error) {
			_, bad := kernel.Build("k", func(b *kernel.Builder) {
				k = b
				err = invoke(f, w.arguments(x, f, args))
			}).Program()
			if bad != nil {
				return returned{bad}
			}
			return err
		})
	}
	each := func(name string, f reflect.Value) {
		for i := range f.Type().NumIn() {
			for _, v := range w.of(f.Type().In(i)) {
				args := w.sound(f.Type(), 0)
				args[i] = v
				must := ""
				if v.wrong && !slices.Contains(handed, name[strings.LastIndexByte(name, '.')+1:]) {
					must = describe(name, args)
				}
				call(name, f, args, must)
			}
		}
		for range 20 {
			args := w.sound(f.Type(), 0)
			for i := range args {
				vs := w.of(f.Type().In(i))
				args[i] = vs[w.rand.IntN(len(vs))]
			}
			call(name, f, args, "")
		}
	}
	for _, sample := range kernelTypes {
		methods(sample, each)
	}
	for _, name := range slices.Sorted(maps.Keys(kernelFunctions)) {
		each(name, reflect.ValueOf(kernelFunctions[name]))
	}
	for msg, what := range w.said {
		t.Logf("%s\n\t\t%s", msg, what)
	}
}

// foreign adds what belongs to a kernel that is finished.
func (w *walk) foreign() {
	const name = "of another kernel"
	kernel.Build("other", func(k *kernel.Builder) {
		w.add((*kernel.Builder)(nil), bad(name, k))
		w.add(kernel.Value{}, bad(name, k.I32(1)))
		w.add(kernel.Var{}, bad(name, k.Var(k.I32(1))))
		w.add(kernel.Buffer{}, bad(name, k.Buffer("p", tenon.Float32)))
		w.add(kernel.Array{}, bad(name, k.Shared("s", tenon.Float32, 8)))
		w.add(kernel.TensorMap{}, bad(name, k.TensorMap("m")))
		w.add(kernel.Tile{}, bad(name, k.Tile("m", tenon.Float32, 16, 16)))
	})
}

// apart are the functions and methods that no walk calls, with the reasons.
var apart = map[string]string{
	"tenon.Exec.Close": "tested on the devices that the walks open",
	"fault.New":        "makes errors of what it is given",
	"fault.Wrap":       "as New",
	"fault.At":         "as New",
	"memcheck":         "the other types are data of the program's own, and their methods read its fields",
	"memviz.NewServer": "opens a port; tested in its package",
	"tenontest.Run":    "fails the test that it is given, as the others do", "tenontest.AssertClose": "as Run",
	"tenontest.AssertEqual": "as Run", "tenontest.AssertGrad": "as Run",
}

// TestMisuseIsWhole: the walks call every function and method that api/tenon.txt records.
func TestMisuseIsWhole(t *testing.T) {
	walked := map[string]bool{}
	note := func(name string, _ reflect.Value) { walked[name] = true }
	for _, m := range []map[string]any{functions, kernelFunctions} {
		for name := range m {
			walked[name] = true
		}
	}
	for _, sample := range slices.Concat(types, kernelTypes, []any{(*tenon.Exec)(nil), (*tenon.Tensor)(nil)}) {
		methods(sample, note)
	}
	f, err := os.Open(filepath.Join("api", "tenon.txt"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	in := bufio.NewScanner(f)
	for in.Scan() {
		pkg, decl, _ := strings.Cut(strings.TrimPrefix(in.Text(), "pkg tenon.dev"), ", ")
		pkg = path.Base("/tenon" + pkg)
		kind, rest, _ := strings.Cut(decl, " ")
		name := ""
		switch kind {
		case "func":
			name = pkg + "." + rest[:strings.IndexAny(rest, "([")]
		case "method":
			recv, method, _ := strings.Cut(strings.TrimLeft(rest, "(*"), ") ")
			name = pkg + "." + recv + "." + method[:strings.IndexByte(method, '(')]
			if apart[pkg] != "" || apart[pkg+"."+recv] != "" {
				continue
			}
		default:
			continue
		}
		if !walked[name] && apart[name] == "" {
			t.Errorf("no walk calls %s: name it among functions or types", name)
		}
	}
	if err := in.Err(); err != nil {
		t.Fatal(err)
	}
}
