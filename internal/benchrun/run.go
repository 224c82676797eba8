// Package benchrun stores the results of tests and benchmarks on one machine in a file, and generates the page of measurements from such
// files. It must not depend on anything that is measured: it receives figures as numbers with a name and a unit.
package benchrun

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"

	"tenon.dev/fault"
)

// Run is one file of bench/runs: what was measured and tested on one machine, with one state of the source.
type Run struct {
	// Date is the day, as 2006-01-02. Device is the device's name, Driver its driver with the version, Host the processor and its threads.
	Date   string `json:"date"`
	Device string `json:"device"`
	Driver string `json:"driver"`
	Host   string `json:"host"`
	// Go is the Go version and platform. Commit is the commit of the source, or empty if the machine did not know it.
	Go     string `json:"go"`
	Commit string `json:"commit,omitempty"`
	// Torch is the version of PyTorch that its figures come from, if any.
	Torch string `json:"torch,omitempty"`
	// Packages holds a hash of every package's source files, by folder: it identifies what was measured even if the commit does not.
	Packages map[string]string `json:"packages"`
	// Figures are sorted by name, Tests by package and name.
	Figures []Figure `json:"figures"`
	Tests   []Test   `json:"tests,omitempty"`
}

// Figure is one measured quantity.
type Figure struct {
	// Name identifies the quantity in all runs; Unit is its unit, such as "µs" or "TB/s".
	Name string `json:"name"`
	Unit string `json:"unit"`
	Sample
	// Torch is PyTorch's figure for the same work, measured on the same machine at the same time.
	Torch *Sample `json:"torch,omitempty"`
	// Note adds what the name does not say: the method, the size.
	Note string `json:"note,omitempty"`
}

// Sample summarizes N repeated measurements.
type Sample struct {
	// Median, Min and Max are in the figure's unit.
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	// N is the number of measurements.
	N int `json:"n"`
}

// Summarize summarizes measurements, of which there must be at least one.
func Summarize(values []float64) Sample {
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return Sample{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// Test is the result of one test function.
type Test struct {
	// Package is the folder within the module.
	Package string `json:"package"`
	Name    string `json:"name"`
	// Result is "pass", "fail" or "skip".
	Result string `json:"result"`
	// Subtests counts the sub-tests at every depth by result; nil if there are none.
	Subtests map[string]int `json:"subtests,omitempty"`
	// Seconds is how long it took.
	Seconds float64 `json:"seconds"`
}

// Add adds figures to the run. A figure replaces an existing one with the same name, but keeps that one's Torch if it has none itself.
func (r *Run) Add(figures ...Figure) {
	for _, f := range figures {
		i := slices.IndexFunc(r.Figures, func(g Figure) bool { return g.Name == f.Name })
		if i < 0 {
			r.Figures = append(r.Figures, f)
			continue
		}
		if f.Torch == nil {
			f.Torch = r.Figures[i].Torch
		}
		r.Figures[i] = f
	}
	sort.SliceStable(r.Figures, func(i, j int) bool { return r.Figures[i].Name < r.Figures[j].Name })
}

// AddTests adds test results to the run; a result replaces an existing one with the same package and name.
func (r *Run) AddTests(tests ...Test) {
	for _, t := range tests {
		r.Tests = slices.DeleteFunc(r.Tests, func(u Test) bool { return u.Package == t.Package && u.Name == t.Name })
		r.Tests = append(r.Tests, t)
	}
	sort.SliceStable(r.Tests, func(i, j int) bool {
		a, b := r.Tests[i], r.Tests[j]
		return a.Package < b.Package || a.Package == b.Package && a.Name < b.Name
	})
}

// FileName returns the run's file name in bench/runs.
func (r *Run) FileName() string {
	slug := strings.FieldsFunc(strings.ToLower(r.Device), func(c rune) bool { return (c < 'a' || c > 'z') && (c < '0' || c > '9') })
	return r.Date + "-" + strings.Join(slug, "-") + ".json"
}

// Read reads a run file.
func Read(name string) (*Run, error) {
	r := &Run{}
	if err := readFile(name, r); err != nil {
		return nil, err
	}
	return r, nil
}

// readFile reads a file of bench/runs into v, which has all of its fields.
func readFile(name string, v any) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return fault.Wrap(fault.System, err, "cannot read the run file")
	}
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return fault.Wrap(fault.Invalid, err, "the run file %s has another form", name)
	}
	return nil
}

// Write writes the run file; the same run always gives the same bytes.
func (r *Run) Write(name string) error { return writeFile(name, r) }

func writeFile(name string, v any) error {
	b, err := json.MarshalIndent(v, "", "\t")
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the run cannot be written as JSON")
	}
	if err := os.WriteFile(name, append(b, '\n'), 0o666); err != nil {
		return fault.Wrap(fault.System, err, "cannot write the run file")
	}
	return nil
}

// Merge adds the results of other, which must be from the same device, driver and source; otherwise it returns an error.
func (r *Run) Merge(other *Run) error {
	switch {
	case r.Device != other.Device || r.Driver != other.Driver:
		return fault.New(fault.Invalid, "the run is of %s with %s, the new results are of %s with %s: write them to another file",
			r.Device, r.Driver, other.Device, other.Driver)
	case !maps.Equal(r.Packages, other.Packages):
		return fault.New(fault.Invalid, "the run on %s is of other source files than the new results, in %s: write them to another file",
			r.Device, differing(r.Packages, other.Packages))
	}
	if r.Commit == "" {
		r.Commit = other.Commit
	}
	r.Add(other.Figures...)
	r.AddTests(other.Tests...)
	return nil
}

// differing names the folders whose hashes differ.
func differing(a, b map[string]string) string {
	both := maps.Clone(a)
	maps.Copy(both, b)
	maps.DeleteFunc(both, func(dir, _ string) bool { return a[dir] == b[dir] })
	return strings.Join(slices.Sorted(maps.Keys(both)), ", ")
}

// torchFile is the format that bench/torch_bench.py writes.
type torchFile struct {
	Torch   string `json:"torch"`
	CUDA    string `json:"cuda"`
	Device  string `json:"device"`
	Figures []struct {
		Name string `json:"name"`
		Unit string `json:"unit"`
		Sample
		Note string `json:"note"`
	} `json:"figures"`
	Failed map[string]string `json:"failed"`
}

// MergeTorch adds PyTorch's figures from the file that bench/torch_bench.py wrote on the same machine. Figures that the run does not have
// are left out; a figure in a different unit is an error.
func (r *Run) MergeTorch(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return fault.Wrap(fault.System, err, "cannot read PyTorch's figures")
	}
	var t torchFile
	if err := json.Unmarshal(b, &t); err != nil {
		return fault.Wrap(fault.Invalid, err, "PyTorch's figures in %s have another form", name)
	}
	if t.Device != r.Device {
		return fault.New(fault.Invalid, "PyTorch's figures in %s are of %s, the run is of %s", name, t.Device, r.Device)
	}
	r.Torch = fmt.Sprintf("%s (CUDA %s)", t.Torch, t.CUDA)
	for _, f := range t.Figures {
		for i := range r.Figures {
			g := &r.Figures[i]
			if torchName(g.Name) != f.Name {
				continue
			}
			if g.Unit != f.Unit {
				return fault.New(fault.Invalid, "figure %s is in %s here and in %s in %s", g.Name, g.Unit, f.Unit, name)
			}
			s := f.Sample
			g.Torch = &s
		}
	}
	return nil
}

// HashPackages returns a hash for every folder of the module at root that contains Go files: the first 12 hexadecimal digits of SHA-256
// over names and contents of the folder's own files, including tests. testdata and bench/runs are left out.
func HashPackages(root string) (map[string]string, error) {
	files := map[string][]string{}
	hasGo := map[string]bool{}
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if n := d.Name(); p != root && (n[0] == '.' || n[0] == '_' || n == "testdata" || n == "bin") {
				return fs.SkipDir
			}
			return nil
		}
		if d.Type().IsRegular() {
			dir := filepath.Dir(p)
			files[dir] = append(files[dir], p)
			hasGo[dir] = hasGo[dir] || strings.HasSuffix(p, ".go")
		}
		return nil
	})
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot hash the packages")
	}
	out := map[string]string{}
	for dir, list := range files {
		if !hasGo[dir] {
			continue
		}
		h := sha256.New()
		for _, p := range list { // in WalkDir's lexical order
			b, err := os.ReadFile(p)
			if err != nil {
				return nil, fault.Wrap(fault.System, err, "cannot hash the packages")
			}
			fmt.Fprintf(h, "%s %d\n", filepath.Base(p), len(b))
			h.Write(b)
		}
		rel, err := filepath.Rel(root, dir)
		if err != nil {
			return nil, fault.Wrap(fault.System, err, "cannot hash the packages")
		}
		out[filepath.ToSlash(rel)] = hex.EncodeToString(h.Sum(nil))[:12]
	}
	return out, nil
}

// Root returns the module's folder: the first with a go.mod, from the current folder upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	for err == nil {
		if _, e := os.Stat(filepath.Join(dir, "go.mod")); e == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			err = errors.New("no go.mod in any folder above")
		}
		dir = up
	}
	return "", fault.Wrap(fault.System, err, "cannot find the module's folder")
}
