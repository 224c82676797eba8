package benchrun

import (
	"bufio"
	"io"
	"regexp"
	"strconv"
	"strings"
)

var (
	resultLine    = regexp.MustCompile(`^( *)--- (PASS|FAIL|SKIP): (\S+) \((\d+\.\d+)s\)$`)
	benchmarkLine = regexp.MustCompile(`^(Benchmark\S*?)(-\d+)?\s+\d+\s+(\d.*)$`)
)

// ParseLog parses the output of a test binary run with -test.v: the results of its tests and, for each benchmark, every metric as a figure
// "<package>.<benchmark>" ("…:<unit>" except for times), over the repetitions of -test.count.
func ParseLog(pkg string, log io.Reader) ([]Test, []Figure, error) {
	var tests []Test
	index := map[string]int{}
	values, units := map[string][]float64{}, map[string]string{}
	var order []string
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<24)
	var subs []Test
	for lines.Scan() {
		if m := resultLine.FindStringSubmatch(lines.Text()); m != nil {
			seconds, _ := strconv.ParseFloat(m[4], 64)
			t := Test{Package: pkg, Name: m[3], Result: strings.ToLower(m[2]), Seconds: seconds}
			if strings.Contains(t.Name, "/") {
				subs = append(subs, t)
				continue
			}
			index[t.Name] = len(tests)
			tests = append(tests, t)
			continue
		}
		m := benchmarkLine.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		fields := strings.Fields(m[3])
		for i := 0; i+1 < len(fields); i += 2 {
			v, err := strconv.ParseFloat(fields[i], 64)
			if err != nil {
				break
			}
			name, unit := pkg+"."+strings.TrimPrefix(m[1], "Benchmark"), fields[i+1]
			if unit != "ns/op" {
				name += ":" + unit
			}
			if values[name] == nil {
				order = append(order, name)
			}
			values[name], units[name] = append(values[name], v), unit
		}
	}
	for _, s := range subs { // their lines come before or after the parent's, depending on -test.v
		parent, _, _ := strings.Cut(s.Name, "/")
		if i, ok := index[parent]; ok {
			t := &tests[i]
			if t.Subtests == nil {
				t.Subtests = map[string]int{}
			}
			t.Subtests[s.Result]++
		}
	}
	var figures []Figure
	for _, name := range order {
		figures = append(figures, Figure{Name: name, Unit: units[name], Sample: Summarize(values[name])})
	}
	return tests, figures, lines.Err()
}
