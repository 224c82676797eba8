package main

import (
	"regexp"
	"strconv"
	"strings"
	"testing"
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
