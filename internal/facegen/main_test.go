package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestFaceIsCurrent: the root package's zface.go is the one generated from core's methods, in one file.
func TestFaceIsCurrent(t *testing.T) {
	want, err := generate("../core")
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("../../zface.go"); err != nil || !bytes.Equal(got, want) {
		t.Errorf("zface.go is out of date (%v): run go generate ./...", err)
	}
	if names, err := filepath.Glob("../../z*.go"); err != nil || !slices.Equal(names, []string{"../../zface.go"}) {
		t.Errorf("the root package has %v (%v), want one generated file", names, err)
	}
}

// generated returns the face of a core package with the given text.
func generated(t *testing.T, text string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "core.go"), []byte("package core\n\n"+text), 0o644); err != nil {
		t.Fatal(err)
	}
	src, err := generate(dir)
	return string(src), err
}

// TestInto: the directive makes a method with destinations, which replace the type and shape parameters of a factory; a result that no
// destination can take is refused.
func TestInto(t *testing.T) {
	src, err := generated(t, `
// Neg returns -t.
//
//tenon:into
func (x *Exec) Neg(t *Tensor) *Tensor { return nil }

// Plain returns t.
func (x *Exec) Plain(t *Tensor) *Tensor { return nil }

// Draw returns numbers below high.
//
//tenon:into
func (x *Exec) Draw(high int64, shape []int, dt dtype.DType) *Tensor { return nil }

// MaxDim returns two.
//
//tenon:into
func (x *Exec) MaxDim(t *Tensor, dim int) (values, indices *Tensor) { return nil, nil }
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"// Neg returns -t.\nfunc (x *Exec) Neg(t *Tensor) *Tensor {",
		"// NegInto is [Exec.Neg] with its result in dst; see [Tensor] for what that may be.\n" +
			"func (x *Exec) NegInto(dst *Tensor, t *Tensor) {",
		"func (x *Exec) DrawInto(dst *Tensor, high int64) {", "return cx.Draw(high, dst.Shape(), dst.DType())",
		"func (x *Exec) MaxDimInto(values *Tensor, indices *Tensor, t *Tensor, dim int) {", "core.IntoPair(cx, \"MaxDimInto\"",
	} {
		if !strings.Contains(src, want) {
			t.Errorf("the face lacks %q:\n%s", want, src)
		}
	}
	if strings.Contains(src, "PlainInto") || strings.Contains(src, "tenon:into") {
		t.Errorf("the face has too much:\n%s", src)
	}
	for _, results := range []string{"[]*Tensor", "(a, b, c *Tensor)"} {
		_, err := generated(t, "// Split returns parts.\n//\n//tenon:into\nfunc (x *Exec) Split(t *Tensor) "+results+" { return nil }\n")
		if err == nil || !slices.ContainsFunc([]string{"cannot go to a destination", "at most 2 can go to destinations"},
			func(s string) bool { return strings.Contains(err.Error(), s) }) {
			t.Errorf("%s: %v", results, err)
		}
	}
}
