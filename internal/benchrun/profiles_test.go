package benchrun

import (
	"bytes"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tenon.dev/fault"
	"tenon.dev/profile"
)

// seen is a profile of a device of 1 GB/s and 1 TFLOP/s in bfloat16: two operations of one kind, their derivative, one of another kind, and
// two that took no time.
func seen() *profile.Profile {
	const us = time.Microsecond
	tensor := profile.Tensor{DType: "bfloat16", Shape: []int{4, 8}}
	op := func(name string, took time.Duration, bytes int64, kernels ...string) profile.Op {
		o := profile.Op{Name: name, Kind: profile.KindOp, Phase: profile.Forward, Parent: -1, Forward: -1, Fused: -1, Bytes: bytes,
			Calls: []int{0}, Inputs: []profile.Tensor{tensor, tensor}}
		for i, k := range kernels {
			begin := time.Duration(i) * took
			o.Kernels = append(o.Kernels, profile.Kernel{Name: k, Begin: begin, End: begin + took, Timed: took > 0})
		}
		return o
	}
	product := op("MatMul", 30*us, 10_000, "matmul_bf16_s_bf16_i0_v8_tilerows64", "sum_bf16_i32_v4")
	product.FLOPs, product.Compute = 20_000_000, "bfloat16"
	back := op("MatMul", 100*us, 10_000, "matmul_bf16_s_bf16_i0_v8_tilerows32")
	back.Phase, back.Forward, back.Calls = profile.Backward, 0, []int{1}
	return &profile.Profile{Format: 1,
		Device: profile.Device{Name: "NVIDIA TEST", Bandwidth: 1e9, Rates: map[string]float64{"bfloat16": 1e12}},
		Began:  time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Duration: time.Millisecond,
		Frames: []profile.Frame{{Function: "tenon.dev/internal/resnet.(*Block).Forward", File: "/src/x/model.go", Line: 7},
			{Function: "tenon.dev/bench_test.TestX.func1", File: `C:\x\bench\x_test.go`, Line: 8},
			{Function: "main.main", File: "/a/b/main.go", Line: 9}},
		Ops: []profile.Op{product, product, back, op("Add", 5*us, 4_000, "pw_add_i64_i64_i32_v2"), op("View", 0, 0),
			op("Exp", 0, 1000, "exp")},
		Memory: []profile.MemoryEvent{{Bytes: 100, Op: -1}}}
}

func TestCondense(t *testing.T) {
	p := seen()
	c := Condense(p)
	var got []string
	for _, f := range c.Frames {
		got = append(got, f.File)
	}
	if s := strings.Join(got, " "); s != "internal/resnet/model.go bench/x_test.go main/main.go" {
		t.Errorf("the files are %s", s)
	}
	if len(c.Memory) > 0 || len(p.Memory) == 0 || p.Frames[0].File != "/src/x/model.go" {
		t.Errorf("the memory is %v, of the whole %v, whose first file is %s", c.Memory, p.Memory, p.Frames[0].File)
	}
}

func TestProfileSection(t *testing.T) {
	p := seen()
	want := "## ResNet-50 on one image, eager\n\nNVIDIA TEST, 2026-01-02, commit not recorded " +
		"([`resnet.infer.1.eager.profile`](../bench/profiles/resnet.infer." +
		"1.eager.profile)). 6 launches took 225 µs on the device. Their floors are 54 µs together, 24 % of that.\n\n" +
		"| kernel | operation | line | operands | launches | time | floor | of the floor | above the floor |\n" +
		"| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n" +
		"| matmul_bf16_s_bf16 | MatMul (backward) | internal/resnet/model.go:7 | bfloat16[4 8], bfloat16[4 8] | 1 | 100 µs | 10 µs | " +
		"10 % | 90 µs |\n" +
		"| matmul_bf16_s_bf16 | MatMul | internal/resnet/model.go:7 | bfloat16[4 8], bfloat16[4 8] | 2 | 60 µs | 20 µs | " +
		"33 % | 40 µs |\n" +
		"| sum_bf16 | MatMul | internal/resnet/model.go:7 | bfloat16[4 8], bfloat16[4 8] | 2 | 60 µs | 20 µs | 33 % | 40 µs |\n" +
		"| pw_add_i64_i64 | Add | internal/resnet/model.go:7 | bfloat16[4 8], bfloat16[4 8] | 1 | 5 µs | 4 µs | 80 % | 1 µs |\n"
	if got := ProfileSection("resnet.infer.1.eager", Condense(p)); got != want {
		t.Errorf("the section is\n%s\nwant\n%s", got, want)
	}
	for range 12 { // on different lines
		o := p.Ops[0]
		o.Calls = []int{len(p.Frames)}
		p.Frames = append(p.Frames, profile.Frame{Function: "main.f", File: "main.go", Line: 100 + len(p.Frames)})
		p.Ops = append(p.Ops, o)
	}
	if got := ProfileSection("x", p); strings.Count(got, "\n| ") != 2+10 || !strings.HasPrefix(got, "## x\n") {
		t.Errorf("the section of many rows is\n%s", got)
	}
	p.Device.Bandwidth, p.Device.Rates, p.Commit = 0, nil, "abc123"
	got := ProfileSection("x", p)
	if !strings.Contains(got, "NVIDIA TEST, 2026-01-02, commit abc123 (") {
		t.Errorf("the section lacks the commit:\n%s", got)
	}
	if !strings.Contains(got, "There are no floors: the figures of NVIDIA TEST are not known.") ||
		!strings.Contains(got, "| 100 µs | - | - | 100 µs |") {
		t.Errorf("without figures the section is\n%s", got)
	}
}

// The section of a graph without times of its kernels has the time of its replays, and the floors of what was captured.
func TestGraphSection(t *testing.T) {
	p := seen()
	for i := range p.Ops {
		p.Ops[i].Captured = true
		for k := range p.Ops[i].Kernels {
			p.Ops[i].Kernels[k] = profile.Kernel{Name: p.Ops[i].Kernels[k].Name}
		}
	}
	captured := len(p.Ops)
	for i := range 3 {
		p.Ops = append(p.Ops, profile.Op{Name: "Replay", Kind: profile.KindGraph, Parent: -1, Forward: -1, Fused: -1,
			Nodes:   []string{"a", "b"},
			Kernels: []profile.Kernel{{Name: "graph", End: time.Duration(100+i) * time.Microsecond, Timed: true}}})
	}
	got := ProfileSection("resnet.infer.1.graph", p)
	want := "A replay of 2 kernels took 101 µs, the median of 3. The floors of its kernels are 55 µs together, 54 % of that. " +
		"Its kernels have no times of their own.\n"
	if !strings.HasSuffix(got, want) {
		t.Errorf("the section is\n%s\nwant %s", got, want)
	}
	for i := range p.Ops[captured:] {
		p.Ops[captured+i].Kernels[0] = profile.Kernel{Name: "graph"}
	}
	want = "A replay of 2 kernels was not timed. The floors of its kernels are 55 µs together. Its kernels"
	if got := ProfileSection("x", p); !strings.Contains(got, want) {
		t.Errorf("without times the section is\n%s\nwant %s", got, want)
	}
	p.Device.Bandwidth, p.Device.Rates = 0, nil
	if got := ProfileSection("x", p); !strings.Contains(got, "There are no floors") {
		t.Errorf("without figures the section is\n%s", got)
	}
}

// Where the operations of replays have times, the section of a graph has their table, and the times of the replays as a whole.
func TestTwinSection(t *testing.T) {
	p := seen()
	parts := p.Ops
	p.Ops = []profile.Op{{Name: "Exp", Kind: profile.KindOp, Parent: -1, Forward: -1, Fused: -1, Captured: true, Bytes: 1000,
		Kernels: []profile.Kernel{{Name: "exp"}}}}
	for i := range 2 {
		at := len(p.Ops)
		end := time.Duration(300+i) * time.Microsecond
		p.Ops = append(p.Ops, profile.Op{Name: "Replay", Kind: profile.KindGraph, Parent: -1, Forward: -1, Fused: -1,
			Nodes:   []string{"a", "b"},
			Kernels: []profile.Kernel{{Name: "graph", End: end, Timed: true, Whole: true}}})
		for _, o := range parts {
			o.Parent, o.Forward = at, -1
			p.Ops = append(p.Ops, o)
		}
	}
	got := ProfileSection("resnet.infer.1.graph", Condense(p))
	for _, want := range []string{"A replay of 2 kernels took 301 µs, the median of 2. 12 launches took 450 µs on the device. " +
		"Their floors are 108 µs together, 24 % of that.\n",
		"\n| matmul_bf16_s_bf16 | MatMul | internal/resnet/model.go:7 | bfloat16[4 8], bfloat16[4 8] | 4 | 120 µs | 40 µs | "} {
		if !strings.Contains(got, want) {
			t.Errorf("the section is\n%s\nwant %s", got, want)
		}
	}
	if strings.Contains(got, "| graph |") || strings.Contains(got, "no times of their own") {
		t.Errorf("the section is\n%s", got)
	}
}

func TestProfilePage(t *testing.T) {
	dir := t.TempDir()
	page := func() string {
		t.Helper()
		text, err := ProfilePage(dir)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if got := page(); !strings.HasSuffix(got, "\nNo profile has been recorded yet.\n") {
		t.Errorf("the page of nothing is\n%s", got)
	}
	for _, name := range []string{"another", "resnet.infer.1.eager", "gpt2.train.eager"} {
		var b bytes.Buffer
		if err := seen().Write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name+".profile"), b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	text := page()
	if strings.Contains(text, "No profile") {
		t.Error("the page says that it is empty")
	}
	last := 0
	for _, title := range []string{"\n## GPT-2's training step, eager\n", "\n## ResNet-50 on one image, eager\n", "\n## another\n"} {
		at := strings.Index(text, title)
		if at <= last {
			t.Errorf("%q stands at %d, after %d", title, at, last)
		}
		last = at
	}
	if err := os.WriteFile(filepath.Join(dir, "bad.profile"), []byte("no profile"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := ProfilePage(dir); fault.KindOf(err) != fault.Invalid || !strings.Contains(err.Error(), "bad.profile") {
		t.Errorf("a damaged profile: %v", err)
	}
}

// TestProfilesAreCurrent compares docs/profiles.md with the page generated from the recorded profiles.
func TestProfilesAreCurrent(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	want, err := ProfilePage(filepath.Join(root, "bench", "profiles"))
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "profiles.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(page, want) {
		t.Error("docs/profiles.md is out of date: run go generate ./bench")
	}
}

// The figures that floors are computed from are the best that runs have recorded on the device.
func TestFiguresAreRecorded(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	_, runs, err := Runs(filepath.Join(root, "bench", "runs"))
	if err != nil {
		t.Fatal(err)
	}
	best := map[string]map[string]float64{}
	for _, r := range runs {
		if best[r.Device] == nil {
			best[r.Device] = map[string]float64{}
		}
		for _, f := range r.Figures {
			best[r.Device][f.Name] = max(best[r.Device][f.Name], f.Median*1e12)
		}
	}
	compared := 0
	for name, figures := range best {
		d := profile.DeviceOf(name)
		if d.Bandwidth == 0 {
			continue
		}
		for what, c := range map[string][2]float64{"bytes": {d.Bandwidth, figures["add.large"]},
			"bfloat16": {d.Rates["bfloat16"], figures["matmul.bf16"]},
			"float16":  {d.Rates["float16"], figures["matmul.f16"]},
			"float32":  {d.Rates["float32"], figures["matmul.f32"]},
			"tf32":     {d.Rates["tf32"], figures["matmul.tf32"]}} {
			compared++
			if math.Abs(c[0]-c[1]) > 0.03*c[1] {
				t.Errorf("%s: floors take %.4g a second of %s, and the best recorded is %.4g; put that into profile/device.go",
					name, c[0], what, c[1])
			}
		}
	}
	if compared == 0 {
		t.Error("no device's figures were compared")
	}
}
