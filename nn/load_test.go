package nn_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/safetensors"
	"tenon.dev/tenontest"
)

// part writes the arrays of the file from whose names f takes to another file of the same folder.
func part(t *testing.T, from, to string, takes func(name string) bool) {
	t.Helper()
	f, err := safetensors.Open(from)
	ok(t, err)
	defer f.Close()
	var infos []safetensors.Info
	for _, i := range f.Infos() {
		if takes(i.Name) {
			infos = append(infos, i)
		}
	}
	ok(t, safetensors.Save(filepath.Join(filepath.Dir(from), to), nil, infos,
		func(i safetensors.Info) ([]byte, error) { return f.Read(i.Name) }))
}

// saved writes the module of normed with seed 0 to a file, and returns its name and what it holds.
func saved(t *testing.T, x *tenon.Exec) (file string, want map[string]string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "m.safetensors")
	m := nn.Scoped(x, normed(x, 0, 8))
	ok(t, nn.SaveFile(x, m, file))
	return file, bytesOf(t, x, m)
}

// holds fails unless m has exactly the bytes want.
func holds(t *testing.T, x *tenon.Exec, m any, want map[string]string) {
	t.Helper()
	for key, got := range bytesOf(t, x, m) {
		if got != want[key] {
			t.Errorf("%s differs", key)
		}
	}
}

func fails(t *testing.T, err error, says string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("got %v, want an error with %q", err, says)
	}
}

// A file may have more keys than the module, if that is allowed, but must have all of the module's.
func TestLoadIgnoresUnexpected(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		file, want := saved(t, x)
		small := nn.Scoped(x, nn.Sequential{normed(x, 1, 8)[0]})
		fails(t, nn.LoadFile(x, small, file), `Unexpected key(s) in state_dict: "1.bias"`)
		ok(t, nn.LoadFile(x, small, file, nn.LoadOpt{IgnoreUnexpected: true}))
		holds(t, x, small, want)
		part(t, file, "part", func(name string) bool { return name != "0.bias" })
		fails(t, nn.LoadFile(x, small, filepath.Join(filepath.Dir(file), "part"), nn.LoadOpt{IgnoreUnexpected: true}),
			`Missing key(s) in state_dict: "0.bias"`)
	})
}

// A model in several files is loaded by their index; if one is missing or wrong, nothing is loaded.
func TestLoadShards(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		file, want := saved(t, x)
		first := func(name string) bool { return name[0] == '0' }
		part(t, file, "a.safetensors", first)
		part(t, file, "b.safetensors", func(name string) bool { return !first(name) })
		var entries []string
		for key := range want {
			shard := "b.safetensors"
			if first(key) {
				shard = "a.safetensors"
			}
			entries = append(entries, `"`+key+`":"`+shard+`"`)
		}
		index := filepath.Join(filepath.Dir(file), "model.safetensors.index.json")
		write := func(text string) { ok(t, os.WriteFile(index, []byte(text), 0o600)) }
		good := `{"metadata":{"total_size":1},"weight_map":{` + strings.Join(entries, ",") + `}}`
		write(good)
		m := nn.Scoped(x, normed(x, 1, 8))
		ok(t, nn.LoadFile(x, m, index))
		holds(t, x, m, want)

		other := nn.Scoped(x, normed(x, 2, 8))
		before := bytesOf(t, x, other)
		for text, says := range map[string]string{
			"[":                  "is not JSON with a weight_map",
			"{}":                 "has no weight_map",
			`{"weight_map":{}}`:  "Missing key(s)",
			`{"weight_map":[1]}`: "is not JSON with a weight_map",
			strings.ReplaceAll(good, `"a.safe`, `"../a.safe`):          "is not a file of its own folder",
			strings.ReplaceAll(good, "a.safetensors", "c"):             "no such file",
			strings.ReplaceAll(good, "a.safetensors", "b.safetensors"): `names b.safetensors for "0.bias"`,
		} {
			write(text)
			fails(t, nn.LoadFile(x, other, index), says)
		}
		os.Remove(index)
		fails(t, nn.LoadFile(x, other, index), "LoadFile: cannot load "+index+": the index cannot be read")
		holds(t, x, other, before)
	})
}

// tied is a model whose head has the weight of its embedding.
type tied struct {
	Embed *nn.Embedding
	Head  *nn.Linear
}

// Of the keys of a shared tensor, one is enough.
func TestLoadTied(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		build := func() *tied {
			m := &tied{nn.NewEmbedding(x, 4, 3), nn.NewLinear(x, 3, 4, nn.LinearOpt{NoBias: true})}
			m.Head.Weight.Close()
			m.Head.Weight = m.Embed.Weight
			return nn.Scoped(x, m)
		}
		a, file := build(), filepath.Join(t.TempDir(), "both")
		ok(t, nn.SaveFile(x, a, file))
		part(t, file, "one", func(name string) bool { return name == "Embed.weight" })
		part(t, file, "other", func(name string) bool { return name == "Head.weight" })
		part(t, file, "none", func(name string) bool { return false })
		for _, name := range []string{"both", "one", "other"} {
			b := build()
			ok(t, nn.LoadFile(x, b, filepath.Join(filepath.Dir(file), name)))
			holds(t, x, b, bytesOf(t, x, a))
		}
		fails(t, nn.LoadFile(x, a, filepath.Join(filepath.Dir(file), "none")),
			`Missing key(s) in state_dict: "Embed.weight", "Head.weight"`)
	})
}

// An error names the file, the key and the call, each once, and leaves the module as it was.
func TestLoadErrorNamesKey(t *testing.T) {
	tenontest.Run(t, func(x *tenon.Exec) {
		file, _ := saved(t, x)
		m := nn.Scoped(x, normed(x, 1, 8))
		before := bytesOf(t, x, m)
		ok(t, x.Host().Device().SetMemoryFraction(1e-12))
		err := nn.LoadFile(x, m, file)
		fails(t, err, "LoadFile: cannot load "+file+": 0.bias: the result float32[8] does not fit")
		holds(t, x, m, before)
	}, tenon.Sim(64<<20))
}
