package kir

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev/dtype"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs that the tests see into testdata")

// TestText runs the cases of testdata/*.txt. The file's name says what is done with the text of each case; the expected output follows
// ----.
func TestText(t *testing.T) {
	run := map[string]func(text string) string{"parse": parseCase, "verify": verifyCase, "analysis": analysisCase}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) != len(run) {
		t.Fatal(files, err)
	}
	for _, file := range files {
		f := run[strings.TrimSuffix(filepath.Base(file), ".txt")]
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		for _, c := range strings.SplitAfter(string(data), "\n====\n") {
			if strings.TrimSpace(c) == "" {
				continue
			}
			in, want, ok := strings.Cut(strings.TrimSuffix(c, "====\n"), "----\n")
			if !ok {
				t.Fatalf("%s: a case has no ----:\n%s", file, c)
			}
			name, _, _ := strings.Cut(in, "\n")
			got := f(in)
			fmt.Fprintf(&out, "%s----\n%s====\n", in, got)
			if got != want && !*rewrite {
				t.Errorf("%s %s: got\n%swant\n%s", file, name, got, want)
			}
		}
		if *rewrite {
			if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func parseCase(text string) string {
	ps, err := Parse([]byte(text))
	if err != nil {
		return err.Error() + "\n"
	}
	out := PrintAll(ps)
	again, err := Parse(out)
	if err != nil {
		return "reparse: " + err.Error() + "\n"
	}
	if !bytes.Equal(PrintAll(again), out) {
		return "prints differently when parsed again\n"
	}
	return string(out)
}

func verifyCase(text string) string {
	ps, err := Parse([]byte(text))
	if err != nil {
		return "parse: " + err.Error() + "\n"
	}
	var out strings.Builder
	for _, p := range ps {
		if err := Verify(p); err != nil {
			fmt.Fprintln(&out, err)
		} else {
			fmt.Fprintln(&out, "ok")
		}
	}
	return out.String()
}

func analysisCase(text string) string {
	ps, err := Parse([]byte(text))
	if err != nil {
		return err.Error() + "\n"
	}
	var out strings.Builder
	for _, p := range ps {
		if err := Verify(p); err != nil {
			return err.Error() + "\n"
		}
		a := Analyze(p)
		form := func(f Form) string {
			s := f.Kind.String()
			if f.Kind == Affine {
				s += fmt.Sprint(" ", f.Stride)
			}
			if f.Wraps {
				s += " wraps"
			}
			return s
		}
		var visit func(b *Block)
		visit = func(b *Block) {
			if a.Divergent(b) {
				fmt.Fprintln(&out, "divergent {")
			} else {
				fmt.Fprintln(&out, "{")
			}
			for _, v := range b.Params {
				fmt.Fprintf(&out, "v%d: %s\n", v, form(a.Values[v]))
			}
			for _, in := range b.Instrs {
				for _, v := range in.Res {
					fmt.Fprintf(&out, "%s: %s\n", p.Format(in), form(a.Values[v]))
				}
				for _, sub := range in.Blocks {
					visit(sub)
				}
			}
			fmt.Fprintln(&out, "}")
		}
		visit(p.Body)
		for i := range p.Vars {
			fmt.Fprintf(&out, "var%d: %s\n", i, form(a.Vars[i]))
		}
	}
	return out.String()
}

// FuzzParse checks that no text crashes Parse or Verify, and that what parses is printed as a text that parses to the same program.
func FuzzParse(f *testing.F) {
	for _, file := range []string{"testdata/parse.txt", "testdata/verify.txt", "testdata/analysis.txt"} {
		data, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		for _, c := range strings.Split(string(data), "\n====\n") {
			in, _, _ := strings.Cut(c, "----\n")
			f.Add([]byte(in))
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		ps, err := Parse(text)
		if err != nil {
			return
		}
		out := PrintAll(ps)
		again, err := Parse(out)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if !bytes.Equal(PrintAll(again), out) {
			t.Fatal("prints differently when parsed again")
		}
		for _, p := range ps {
			if Verify(p) == nil {
				Analyze(p)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	text := benchText()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Parse(text); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkVerify(b *testing.B) {
	ps, err := Parse(benchText())
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := Verify(ps[0]); err != nil {
			b.Fatal(err)
		}
	}
}

// benchText is a kernel of about 300 instructions.
func benchText() []byte {
	var t strings.Builder
	t.WriteString(
		"kernel \"chain\" threads 256\nparam0 \"x\" buffer f32\nparam1 \"n\" scalar i64\nfile0 \"chain.go\"\nlocs 0:1 0:2 0:3\n{\n")
	t.WriteString("v0 = param 0 @1\nv1 = special.ctaidx @1\nv2 = special.ntidx @1\nv3 = mulwide.i32 v1, v2 @1\nv4 = special.tidx @1\nv5 " +
		"= cvt.i64 v4 @1\nv6 = add.i64 v3, v5 @1\nv7 = param 1 @1\nv8 = lt.i64 v6, v7 @1\nif v8 @1 {\n")
	v := 9
	for range 18 {
		fmt.Fprintf(&t, "v%d, v%d, v%d, v%d = load.f32x4.readonly v0[v6+4] @2\n", v, v+1, v+2, v+3)
		v += 4
		for range 14 {
			fmt.Fprintf(&t, "v%d = fma.f32 v%d, v%d, v%d @2\n", v, v-1, v-2, v-3)
			v++
		}
		fmt.Fprintf(&t, "store.f32x4 v0[v6+4], v%d, v%d, v%d, v%d @3\n", v-4, v-3, v-2, v-1)
	}
	t.WriteString("}\n}\n")
	return []byte(t.String())
}

// TestMapPlace: tensor maps lie at the offset that the assembler gives them for sm_90, 48 modulo 64.
func TestMapPlace(t *testing.T) {
	m := Param{Kind: ParamArray, Type: dtype.Uint64, Count: MapWords, Align: MapAlign}
	p := &Program{Params: []Param{{Type: dtype.Int32}, m, m, {Type: dtype.Int32}, m}}
	offsets, size := p.ArgLayout()
	if want := []int{0, 48, 176, 304, 368}; !slices.Equal(offsets, want) || size != 496 {
		t.Errorf("parameters at %v, %d bytes in all; want %v and 496", offsets, size, want)
	}
}
