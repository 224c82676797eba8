package recorded

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/safetensors"
)

// Case is one call of an op and PyTorch's result.
type Case struct {
	// Index counts the cases of the file from 0.
	Index int
	// Op is PyTorch's name of the op in its op database, Variant a further name or empty, Type the short name of the type that the inputs
	// were generated for (f32, b, …); arguments may have other types.
	Op, Variant, Type string
	// Input is the first argument, usually a *Tensor; Args are the other positional arguments, Kwargs those by name.
	Input  Value
	Args   List
	Kwargs Dict
	// Out is the result: a *Tensor, a List of them, or a scalar.
	Out Value
	// GradOut are the gradients passed to backward, one for each differentiable result; nil if the case has none. Grads are the resulting
	// gradients, one for each input that requires one, in order; an entry is nil if PyTorch had none.
	GradOut, Grads []*Tensor
}

// Name returns the case's name, such as "sum/reduction_with_dim/f32#17".
func (c *Case) Name() string {
	parts := []string{c.Op}
	if c.Variant != "" {
		parts = append(parts, c.Variant)
	}
	return fmt.Sprintf("%s/%s#%d", strings.Join(parts, "/"), c.Type, c.Index)
}

// Cases is a file of op cases. It keeps the file's content in memory, but decodes the cases one by one.
type Cases struct {
	// Torch is the version of PyTorch that made the file.
	Torch string

	text    []byte
	tensors *safetensors.File
}

// maxPart bounds each of the two files in the archive, so that a corrupt one cannot use up all memory.
const maxPart = 1 << 30

// OpenCases reads a compressed archive of cases.json and tensors.safetensors.
func OpenCases(name string) (*Cases, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot open the op cases")
	}
	defer f.Close()
	c, err := readCases(f)
	if err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "cannot read the op cases in %s", name)
	}
	return c, nil
}

func readCases(r io.Reader) (*Cases, error) {
	z, err := gzip.NewReader(bufio.NewReader(r))
	if err != nil {
		return nil, err
	}
	parts := map[string][]byte{}
	for archive := tar.NewReader(z); ; {
		h, err := archive.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		if h.Size > maxPart {
			return nil, invalid("%s has %d bytes, the limit is %d", h.Name, h.Size, maxPart)
		}
		b := make([]byte, h.Size)
		if _, err := io.ReadFull(archive, b); err != nil {
			return nil, err
		}
		parts[h.Name] = b
	}
	for _, name := range []string{"cases.json", "tensors.safetensors"} {
		if parts[name] == nil {
			return nil, invalid("the archive lacks %s", name)
		}
	}
	c := &Cases{text: parts["cases.json"]}
	data := parts["tensors.safetensors"]
	if c.tensors, err = safetensors.New(bytes.NewReader(data), int64(len(data))); err != nil {
		return nil, err
	}
	dec, err := c.decoder()
	if err == nil && !dec.More() {
		err = invalid("there is no case")
	}
	return c, err
}

// decoder returns a decoder positioned before the first case.
func (c *Cases) decoder() (*json.Decoder, error) {
	dec := json.NewDecoder(bytes.NewReader(c.text))
	dec.UseNumber()
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, invalid("cases.json is not a JSON object")
	}
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if key == "cases" {
			if t, err := dec.Token(); err != nil || t != json.Delim('[') {
				return nil, invalid("the cases are not a JSON array")
			}
			return dec, nil
		}
		var v any
		if err := dec.Decode(&v); err != nil {
			return nil, err
		}
		if key == "torch" {
			c.Torch = fmt.Sprint(v)
		}
	}
	return nil, invalid("cases.json has no member cases")
}

// All yields the cases in the file's order. If one cannot be decoded, it ends with an error and a nil case.
func (c *Cases) All() iter.Seq2[*Case, error] {
	return func(yield func(*Case, error) bool) {
		dec, err := c.decoder()
		for i := 0; err == nil && dec.More(); i++ {
			var one *Case
			if one, err = c.next(dec, i); err == nil && !yield(one, nil) {
				return
			}
		}
		if err != nil {
			yield(nil, err)
		}
	}
}

// next decodes one case.
func (c *Cases) next(dec *json.Decoder, index int) (*Case, error) {
	var text struct {
		Op, Variant, DType string
		Input              any
		Args               []any
		Kwargs             map[string]any
		Out                any
		GradOut            []any `json:"grad_out"`
		Grads              []any
	}
	if err := dec.Decode(&text); err != nil {
		return nil, fault.Wrap(fault.Invalid, err, "case %d is not of the expected form", index)
	}
	one := &Case{Index: index, Op: text.Op, Variant: text.Variant, Type: text.DType}
	var d decoding
	one.Input = d.value(text.Input, c.tensors)
	one.Args, _ = d.value(text.Args, c.tensors).(List)
	if kw, tagged := text.Kwargs["$k"].(map[string]any); tagged {
		text.Kwargs = kw
	}
	one.Kwargs = Dict{}
	for k, v := range text.Kwargs {
		one.Kwargs[k] = d.value(v, c.tensors)
	}
	one.Out = d.value(text.Out, c.tensors)
	one.GradOut = d.tensorList(text.GradOut, c.tensors)
	one.Grads = d.tensorList(text.Grads, c.tensors)
	if d.err != nil {
		return nil, fault.Wrap(fault.Invalid, d.err, "case %s cannot be decoded", one.Name())
	}
	return one, nil
}

// decoding keeps the first error of several decoded values.
type decoding struct{ err error }

func (d *decoding) value(v any, tensors *safetensors.File) Value {
	if d.err != nil {
		return nil
	}
	out, err := decode(v, tensors)
	d.err = err
	return out
}

func (d *decoding) tensorList(l []any, tensors *safetensors.File) []*Tensor {
	var out []*Tensor
	for _, v := range l {
		t, ok := d.value(v, tensors).(*Tensor)
		if !ok && v != nil && d.err == nil {
			d.err = invalid("a gradient is %v, no tensor", v)
		}
		out = append(out, t)
	}
	return out
}

// OpNames reads a list of op names, one per line.
func OpNames(name string) ([]string, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "cannot read the list of ops")
	}
	return strings.Fields(string(b)), nil
}
