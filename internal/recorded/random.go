package recorded

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"os"
	"strconv"

	"tenon.dev/fault"
)

// Random is the output of PyTorch's generators on one device.
type Random struct {
	// Multiprocessors and ThreadsPerMultiprocessor are the device's, which PyTorch's launch shape depends on.
	Multiprocessors          int `json:"sm_count"`
	ThreadsPerMultiprocessor int `json:"max_threads_per_sm"`
	// Seeds holds the draws by seed.
	Seeds map[uint64]Draws `json:"cases"`
}

// Draws are the results for one seed, each after the generator was seeded again, as JSON by name: "rand<n>" and "randn<n>" are lists of
// [index, value], "after<n>" the three uniforms that follow, "state_offset<n>" the eight bytes of the Philox offset; others are lists of
// values. Names that start with "cpu_" come from the CPU's generator.
type Draws map[string]json.RawMessage

// Points returns a result that is a list of [index, value] pairs.
func (d Draws) Points(name string) (index []int, value []float64, err error) {
	var pairs [][2]float64
	if err := d.unmarshal(name, &pairs); err != nil {
		return nil, nil, err
	}
	for _, p := range pairs {
		index, value = append(index, int(p[0])), append(value, p[1])
	}
	return index, value, nil
}

// Values returns a result that is a list of floats.
func (d Draws) Values(name string) (value []float64, err error) {
	return value, d.unmarshal(name, &value)
}

// Ints returns a result that is a list of integers, which may be written as strings.
func (d Draws) Ints(name string) ([]int64, error) {
	var texts []any
	var out []int64
	if err := d.unmarshal(name, &texts); err != nil {
		return nil, err
	}
	for _, t := range texts {
		switch t := t.(type) {
		case float64:
			out = append(out, int64(t))
		case string:
			n, err := strconv.ParseInt(t, 10, 64)
			if err != nil {
				return nil, fault.Wrap(fault.Invalid, err, "the recorded draws %q hold no integer", name)
			}
			out = append(out, n)
		default:
			return nil, invalid("the recorded draws %q hold %v, no integer", name, t)
		}
	}
	return out, nil
}

func (d Draws) unmarshal(name string, to any) error {
	text, ok := d[name]
	if !ok {
		return invalid("there are no recorded draws %q", name)
	}
	if err := json.Unmarshal(text, to); err != nil {
		return fault.Wrap(fault.Invalid, err, "the recorded draws %q have another form", name)
	}
	return nil
}

// OpenRandom reads a compressed file of recorded draws.
func OpenRandom(name string) (*Random, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot open the recorded random numbers")
	}
	defer f.Close()
	r := &Random{}
	z, err := gzip.NewReader(bufio.NewReader(f))
	if err == nil {
		err = json.NewDecoder(z).Decode(r)
	}
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "cannot read the recorded random numbers in %s", name)
	}
	return r, nil
}
