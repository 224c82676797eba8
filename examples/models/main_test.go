package main

import (
	"bytes"
	"regexp"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Every piece of work is timed both ways.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run(options{device: "sim", small: true, runs: 1, samples: 1}, &out); err != nil {
		t.Fatal(err)
	}
	line := regexp.MustCompile(`(?m)^(.*): eager [\d.]+ ms, compiled [\d.]+ ms, at most 0\.\d\d GiB$`)
	lines := line.FindAllStringSubmatch(out.String(), -1)
	if len(lines) != 8 || strings.Count(out.String(), "\n") != 8 || lines[7][1] != "decoder, one token" {
		t.Errorf("printed\n%s", out.String())
	}
}

// results are the bits of the results of eight runs of each piece of work, and the first piece's numbers.
func results(t *testing.T, model func(x *tenon.Exec, small bool) ([]work, error),
	way func() func(*tenon.Exec, func(*tenon.Exec) error) error) (bits [][]byte, numbers []float64) {
	t.Helper()
	x, err := tenon.Open(tenon.Sim(0))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	if err := x.Generator().SetSeed(1); err != nil {
		t.Fatal(err)
	}
	all, err := model(x, true)
	if err != nil {
		t.Fatal(err)
	}
	for i, w := range all {
		do := way()
		for range 8 {
			if err := do(x, w.run); err != nil {
				t.Fatal(err)
			}
			b, err := x.Bytes(w.result)
			if err != nil {
				t.Fatal(err)
			}
			bits = append(bits, b)
			if i == 0 && w.result.Numel() == 1 {
				v, err := x.Item(w.result)
				if err != nil {
					t.Fatal(err)
				}
				numbers = append(numbers, v)
			}
		}
	}
	return bits, numbers
}

// Compiled runs have the bits of eager ones, and the losses of the trained models fall.
func TestWork(t *testing.T) {
	for i, model := range models {
		eager, numbers := results(t, model, func() func(*tenon.Exec, func(*tenon.Exec) error) error { return (*tenon.Exec).Do })
		compiled, _ := results(t, model, func() func(*tenon.Exec, func(*tenon.Exec) error) error { return compile.New().Do })
		for j := range eager {
			if !bytes.Equal(eager[j], compiled[j]) {
				t.Errorf("model %d: result %d is % .20x eagerly and % .20x compiled", i, j, eager[j], compiled[j])
			}
		}
		if i < 2 && numbers[7] >= numbers[0] {
			t.Errorf("model %d: the losses are %v", i, numbers)
		}
		t.Log(numbers)
	}
}
