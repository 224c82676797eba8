package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/tenontest"
)

// The model learns, and its drawing has the lines of six images.
func TestRun(t *testing.T) {
	var out strings.Builder
	if err := run("sim", "../digits/digits.csv.gz", 2, &out); err != nil {
		t.Fatal(err)
	}
	losses := regexp.MustCompile(`loss (.*)\n`).FindAllStringSubmatch(out.String(), -1)
	if len(losses) != 2 {
		t.Fatalf("it printed\n%s", out.String())
	}
	first, _ := strconv.ParseFloat(losses[0][1], 64)
	last, _ := strconv.ParseFloat(losses[1][1], 64)
	if !(last < first-1) {
		t.Errorf("the loss went from %v to %v", first, last)
	}
	if drawn := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")[2:]; len(drawn) != side || len([]rune(drawn[0])) != 6*side {
		t.Errorf("it drew\n%s", strings.Join(drawn, "\n"))
	}
}

// The layers that replace missing ones put pixels in the same places.
func TestLayers(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		in := tenon.From(x, []float32{1, 2, 3, 4}, 1, 1, 2, 2)
		for _, c := range []struct {
			name  string
			layer func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor
			want  []float32
		}{
			{"upsample", upsample, []float32{1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4}},
		} {
			got, err := tenon.Read[float32](x, c.layer(x, in))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s gives %v, %v", c.name, got, err)
			}
		}
	}, tenon.Sim(0))
}
