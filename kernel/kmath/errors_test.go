package kmath_test

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tenon.dev/internal/benchrun"
)

// TestDocumentedErrors: the documentation of the functions and the table of kernels.md give the errors that the latest run measured over
// all Float32 numbers, rounded up to two digits.
func TestDocumentedErrors(t *testing.T) {
	_, runs, err := benchrun.Runs("../../bench/runs")
	if err != nil {
		t.Fatal(err)
	}
	measured := map[string]float64{}
	for _, r := range runs { // the last one is the latest
		for _, f := range r.Figures {
			if name, ok := strings.CutPrefix(f.Name, "unary32."); ok {
				measured[name] = f.Median
			}
		}
	}
	source, table := text(t, "functions.go"), text(t, "../../docs/kernels.md")
	for _, c := range functions {
		worst, ok := measured[strings.ToLower(c.name)]
		if !ok {
			t.Errorf("%s: no run measured it", c.name)
		}
		want := strconv.FormatFloat(math.Ceil(worst*100)/100, 'g', -1, 64)
		says := regexp.MustCompile(`// ` + c.name + ` returns [^\n]*?within ([0-9.]+) ulp`)
		if said := says.FindStringSubmatch(source); said == nil || said[1] != want {
			t.Errorf("%s: its documentation says %q, measured are %v", c.name, said, want)
		}
		if said := cell(table, c.name); said != want {
			t.Errorf("%s: the table says %q, measured are %v", c.name, said, want)
		}
	}
}

// cell returns the error that the table gives for a function. A row's cells name functions and errors in turn; a name's error is at its
// place, or the only one.
func cell(table, name string) string {
	for row := range strings.Lines(table) {
		cells := strings.Split(row, "|")
		for i := 1; i+1 < len(cells); i += 2 {
			names, errors := strings.Split(cells[i], ", "), strings.Split(cells[i+1], ", ")
			for j, n := range names {
				if strings.TrimSpace(n) == fmt.Sprintf("`%s`", name) {
					return strings.TrimSpace(errors[min(j, len(errors)-1)])
				}
			}
		}
	}
	return ""
}

func text(t *testing.T, path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
