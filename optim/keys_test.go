package optim_test

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/optim"
	"tenon.dev/safetensors"
	"tenon.dev/torchfile"
)

// repickled returns a PyTorch file with its pickle changed.
func repickled(t testing.TB, file []byte, change func(pickle []byte) []byte) []byte {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	ok(t, err)
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, e := range r.File {
		in, err := e.Open()
		ok(t, err)
		b, err := io.ReadAll(in)
		ok(t, err)
		if strings.HasSuffix(e.Name, "data.pkl") {
			b = change(b)
		}
		to, err := w.CreateHeader(&zip.FileHeader{Name: e.Name, Method: zip.Store})
		ok(t, err)
		_, err = to.Write(b)
		ok(t, err)
	}
	ok(t, w.Close())
	return out.Bytes()
}

// A key that occurs twice in a state_dict of a PyTorch file is refused wherever it is, since only one of its values can be right.
func TestTorchKeysTwice(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		tr := newTraining(t, x, "Adam")
		defer tr.close()
		tr.gradient(x, 0)
		ok(t, tr.o.Step(x))
		before := tr.values(t, x)
		for _, c := range []struct {
			add      func(root, dict, state, one, group *torchfile.Dict) // adds a key of the same length, with a value
			from, to string
			want     string
		}{
			{func(root, _, _, _, _ *torchfile.Dict) {
				root.Set("optimizeR", 1)
			}, "optimizeR", "optimizer", `the key "optimizer" is there twice`},
			{func(_, dict, _, _, _ *torchfile.Dict) {
				dict.Set("statE", &torchfile.Dict{})
			}, "statE", "state", `the key "state" is there twice`},
			{func(_, dict, _, _, _ *torchfile.Dict) { dict.Set("param_groupS", []any{}) }, "param_groupS", "param_groups",
				`the key "param_groups" is there twice`},
			{func(_, _, _, _, group *torchfile.Dict) { group.Set("lR", 2.0) }, "lR", "lr", `the key "lr" is there twice`},
			{func(_, _, state, _, _ *torchfile.Dict) {
				state.Keys, state.Values = append(state.Keys, 0x3039, 0x3038), append(state.Values, &torchfile.Dict{}, &torchfile.Dict{})
			}, "M\x39\x30", "M\x38\x30", "the state of parameter 12344 is there twice"},
			{func(_, _, _, one, _ *torchfile.Dict) {
				one.Set("exp_avG", nil)
			}, "exp_avG", "exp_avg", `"exp_avg" of parameter 0 is there twice`},
			{func(_, _, _, _, group *torchfile.Dict) {
				group.Set("params", []any{0, 1, 1})
			}, "", "", "parameter 1 is in the parameter groups twice"},
		} {
			dict, err := optim.StateDict(x, tr.o)
			ok(t, err)
			state, _ := dict.Get("state")
			groups, _ := dict.Get("param_groups")
			root := &torchfile.Dict{}
			root.Set("optimizer", dict)
			c.add(root, dict, state.(*torchfile.Dict), state.(*torchfile.Dict).Values[0].(*torchfile.Dict),
				groups.([]any)[0].(*torchfile.Dict))
			var b bytes.Buffer
			ok(t, torchfile.Write(x, &b, root))
			file := repickled(t, b.Bytes(), func(p []byte) []byte {
				if !bytes.Contains(p, []byte(c.from)) {
					t.Fatalf("the pickle has no %q", c.from)
				}
				return bytes.ReplaceAll(p, []byte(c.from), []byte(c.to))
			})
			f, err := torchfile.New(bytes.NewReader(file), int64(len(file)))
			ok(t, err)
			if err := optim.LoadStateDict(x, tr.o, f, "optimizer"); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		if got := tr.values(t, x); !slices.Equal(got, before) {
			t.Errorf("got %v, want %v", got, before)
		}
	})
}

// A key that occurs twice in SaveFile's format is refused too: an array, an entry of the metadata, an option, a parameter.
func TestFileKeysTwice(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		tr := newTraining(t, x, "Adam")
		defer tr.close()
		tr.gradient(x, 0)
		ok(t, tr.o.Step(x))
		name := filepath.Join(t.TempDir(), "optimizer")
		ok(t, optim.SaveFile(x, tr.o, name))
		file, err := os.ReadFile(name)
		ok(t, err)
		header := string(file[8 : 8+binary.LittleEndian.Uint64(file)])
		for _, c := range []struct{ from, to, want string }{
			{`"state.1.exp_avg"`, `"state.0.exp_avg"`, `the header names "state.0.exp_avg" twice`},
			{`"__metadata__":{`, `"__metadata__":{"optimizer":"Adam",`, `metadata "optimizer" is not one string`},
			{`"__metadata__":{`, `"__metadata__":{},"__metadata__":{`, "twice"},
			{`\"lr\":`, `\"lr\":1,\"lr\":`, `the key "lr" is there twice`},
			{`\"lr\":`, `\"lr\":1,\"LR\":`, `the key "LR" is there twice`},
			{`\"params\":[0,1,2]`, `\"params\":[0,1,0]`, "parameter 0 is in the parameter groups twice"},
			{`\"params\":`, `\"params\":[],\"params\":`, `the key "params" is there twice`},
		} {
			if !strings.Contains(header, c.from) {
				t.Fatalf("the header has no %s: %s", c.from, header)
			}
			h := strings.TrimRight(strings.Replace(header, c.from, c.to, 1), " ")
			h += strings.Repeat(" ", (8-len(h)%8)%8)
			b := append(binary.LittleEndian.AppendUint64(nil, uint64(len(h))), h...)
			ok(t, os.WriteFile(name, append(b, file[8+len(header):]...), 0o666))
			if err := optim.LoadFile(x, tr.o, name); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		}
		// The same value in two places is no duplicate key.
		ok(t, optim.SaveFile(x, tr.o, name), optim.LoadFile(x, tr.o, name))
		if _, err := safetensors.Open(name); err != nil {
			t.Error(err)
		}
	})
}
