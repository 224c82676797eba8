package nn

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/origin"
	"tenon.dev/safetensors"
)

// SaveFile writes the parameters and buffers of m to the named file in the safetensors format, under the keys of StateDict; Python reads it
// with safetensors.torch.load_file. The tensors must be on x's device or on the processor. A file that already has that name is replaced
// only once the new one is complete. A module without parameters and buffers is an error: perhaps its fields are not exported.
func SaveFile(x *tenon.Exec, m any, name string) (err error) {
	defer origin.Located("SaveFile", &err)
	var failed error
	stopped := tenon.Try(func() {
		state := map[string]*tenon.Tensor{}
		var arrays []safetensors.Info
		for key, t := range StateDict(m) {
			state[key] = t
			arrays = append(arrays, safetensors.Info{Name: key, DType: t.DType(), Shape: t.Shape()})
		}
		if arrays == nil {
			fail("SaveFile", "%T has no parameters or buffers to save; they are found in exported fields", m)
		}
		failed = safetensors.Save(name, nil, arrays, func(a safetensors.Info) ([]byte, error) { return x.Bytes(state[a.Name]) })
	})
	if stopped != nil {
		failed = stopped
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot save %q", name)
	}
	return nil
}

// LoadFile is Load from a file in the safetensors format, as written by SaveFile or Python's safetensors.torch.save_file, or from an index
// such as model.safetensors.index.json, which names the files that together hold a large model, in the index's folder. The files are read
// completely, into the memory of the processor, before m changes.
func LoadFile(x *tenon.Exec, m any, name string, opts ...LoadOpt) (err error) {
	defer origin.Located("LoadFile", &err)
	opt, err := core.Only("LoadFile", opts)
	if err != nil {
		return err
	}
	var failed error
	given := map[string]source{}
	if strings.HasSuffix(name, ".json") {
		var closeAll func()
		closeAll, failed = openShards(name, given)
		defer closeAll()
	} else {
		f, err := safetensors.Open(name)
		if err != nil {
			return err
		}
		defer f.Close()
		for _, a := range f.Infos() {
			given[a.Name] = filed(f, a)
		}
	}
	if failed == nil {
		if err := tenon.Try(func() { failed = load(x, m, given, opt) }); err != nil {
			failed = err
		}
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot load %s", name)
	}
	return nil
}

// filed is array a of f.
func filed(f *safetensors.File, a safetensors.Info) source {
	return source{a.Shape, func(host *tenon.Exec) (*tenon.Tensor, error) {
		b, err := f.Read(a.Name)
		if err != nil {
			return nil, err
		}
		return host.FromBytes(b, a.DType, a.Shape...), nil
	}}
}

// openShards adds the tensors of the index file name to given. Its files stay open until closeAll is called, also after an error.
func openShards(name string, given map[string]source) (closeAll func(), err error) {
	files := map[string]*safetensors.File{}
	closeAll = func() {
		for _, f := range files { //tenon:unordered each is closed
			f.Close()
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return closeAll, fault.Wrap(fault.System, err, "the index cannot be read")
	}
	var index struct {
		Shards map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(text, &index); err != nil {
		return closeAll, fault.Wrap(fault.Invalid, err, "the index is not JSON with a weight_map from keys to files")
	}
	if index.Shards == nil {
		return closeAll, fault.New(fault.Invalid, "the index has no weight_map from keys to files")
	}
	for _, key := range slices.Sorted(maps.Keys(index.Shards)) {
		shard := index.Shards[key]
		if shard != filepath.Base(shard) {
			return closeAll, fault.New(fault.Invalid, "the index names %q for %q, which is not a file of its own folder", shard, key)
		}
		f := files[shard]
		if f == nil {
			if f, err = safetensors.Open(filepath.Join(filepath.Dir(name), shard)); err != nil {
				return closeAll, err
			}
			files[shard] = f
		}
		a, err := f.Lookup(key)
		if err != nil {
			return closeAll, fault.Wrap(fault.Invalid, err, "the index names %s for %q", shard, key)
		}
		given[key] = filed(f, a)
	}
	return closeAll, nil
}
