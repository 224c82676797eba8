package kir

import (
	"os"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

// programs returns the programs of testdata that Verify accepts.
func programs(t *testing.T) (ps []*Program) {
	t.Helper()
	for _, file := range []string{"testdata/parse.txt", "testdata/verify.txt", "testdata/analysis.txt"} {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range strings.Split(string(data), "\n====\n") {
			in, _, _ := strings.Cut(c, "----\n")
			got, err := Parse([]byte(in))
			if err != nil {
				continue
			}
			for _, p := range got {
				if Verify(p) == nil {
					ps = append(ps, p)
				}
			}
		}
	}
	return ps
}

// TestMutations corrupts every field of every instruction in turn. Verify must accept or reject the result and Print must print it, neither
// with a panic, and what Verify accepts must also be accepted as text.
func TestMutations(t *testing.T) {
	mutations := map[string]func(in *Instr){
		"no operation":  func(in *Instr) { in.Op = OpInvalid },
		"beyond":        func(in *Instr) { in.Op = opCount },
		"no type":       func(in *Instr) { in.Type = dtype.Invalid },
		"complex":       func(in *Instr) { in.Type = dtype.Complex64 },
		"unknown type":  func(in *Instr) { in.Type = 99 },
		"other type":    func(in *Instr) { in.Type = dtype.Uint16 },
		"no operands":   func(in *Instr) { in.Args = nil },
		"more operands": func(in *Instr) { in.Args = append(in.Args[:len(in.Args):len(in.Args)], 0) },
		"missing":       func(in *Instr) { in.Args = []Value{NoValue, NoValue, NoValue}[:min(3, len(in.Args))] },
		"unknown value": func(in *Instr) { in.Args = []Value{9999, 9999, 9999}[:min(3, len(in.Args))] },
		"no results":    func(in *Instr) { in.Res = nil },
		"wrong result":  func(in *Instr) { in.Res = []Value{-5, 9999, 9999, 9999}[:min(4, len(in.Res))] },
		"result twice":  func(in *Instr) { in.Res = append(in.Res[:len(in.Res):len(in.Res)], in.Res...) },
		"sym":           func(in *Instr) { in.Sym = 99 },
		"negative sym":  func(in *Instr) { in.Sym = -1 },
		"sub":           func(in *Instr) { in.Sub = 99 },
		"imm":           func(in *Instr) { in.Imm = 1<<64 - 1 },
		"space":         func(in *Instr) { in.Space = 9 },
		"param space":   func(in *Instr) { in.Space = ParamSpace },
		"cache":         func(in *Instr) { in.Cache = 9 },
		"width":         func(in *Instr) { in.Width = 0 },
		"no blocks":     func(in *Instr) { in.Blocks = nil },
		"nil blocks":    func(in *Instr) { in.Blocks = []*Block{nil, nil}[:min(2, len(in.Blocks))] },
		"empty block":   func(in *Instr) { in.Blocks = []*Block{{}, {}}[:min(2, len(in.Blocks))] },
		"nil instr":     func(in *Instr) { in.Blocks = []*Block{{Instrs: []*Instr{nil}}, {}}[:min(2, len(in.Blocks))] },
		"loc":           func(in *Instr) { in.Loc = 999 },
		"negative loc":  func(in *Instr) { in.Loc = -1 },
	}
	refused := 0
	for _, p := range programs(t) {
		for name, mutate := range mutations {
			var visit func(b *Block)
			visit = func(b *Block) {
				for _, in := range b.Instrs {
					saved := *in
					mutate(in)
					text := Print(p)
					if Verify(p) != nil {
						refused++
					} else if again, err := Parse(text); err != nil || Verify(again[0]) != nil {
						t.Fatalf("%s: accepted, but not as text: %v\n%s", name, err, text)
					}
					*in = saved
					for _, sub := range in.Blocks {
						visit(sub)
					}
				}
			}
			visit(p.Body)
			if err := Verify(p); err != nil {
				t.Fatal("the program was not restored:", err)
			}
		}
	}
	if refused < 1000 {
		t.Errorf("only %d mutations were refused", refused)
	}
}

// TestDeclarations checks declarations that the text form cannot express.
func TestDeclarations(t *testing.T) {
	sound := func() *Program {
		return &Program{Name: "k", Threads: 1, Body: &Block{}, Locs: []Loc{{}}, Values: []Type{dtype.Int32}}
	}
	for name, spoil := range map[string]func(p *Program){
		"no body":      func(p *Program) { p.Body = nil },
		"complex var":  func(p *Program) { p.Vars = []Type{dtype.Complex64} },
		"no type":      func(p *Program) { p.Shared = []Array{{"s", 0, 4}} },
		"param kind":   func(p *Program) { p.Params = []Param{{Name: "x", Kind: 9, Type: dtype.Int32}} },
		"line":         func(p *Program) { p.Locs = append(p.Locs, Loc{"f", -1}) },
		"negative":     func(p *Program) { p.Params = []Param{{Name: "x", Type: dtype.Int32, Align: -4}} },
		"two of value": func(p *Program) { p.Body.Params = []Value{0, 0} },
		"type of value": func(p *Program) {
			p.Values[0] = dtype.Float32
			p.Body.Instrs = []*Instr{{Op: OpConst, Type: dtype.Int32, Res: []Value{0}}}
		},
	} {
		p := sound()
		if err := Verify(p); err != nil {
			t.Fatal(err)
		}
		spoil(p)
		if Verify(p) == nil {
			t.Errorf("%s: accepted", name)
		}
		Print(p)
	}
}

// TestNames checks the names of out-of-range values.
func TestNames(t *testing.T) {
	if Op(200).String() != "invalid" || Space(9).String() != "invalid" || OpAdd.String() != "add" || Shared.String() != "shared" {
		t.Error("a name is wrong")
	}
	p := &Program{Name: "k", Threads: 1, Params: []Param{{Name: "a", Type: dtype.Bool}, {Name: "b", Kind: ParamBuffer, Type: dtype.Float32},
		{Name: "c", Kind: ParamArray, Type: dtype.Int32, Count: 3}, {Name: "d", Type: dtype.Float64}}}
	offsets, size := p.ArgLayout()
	if len(offsets) != 4 || offsets[0] != 0 || offsets[1] != 8 || offsets[2] != 16 || offsets[3] != 32 || size != 40 {
		t.Error(offsets, size)
	}
}
