package nn

import (
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

// LoadFile is Load from a file in the safetensors format, as written by SaveFile or Python's safetensors.torch.save_file.
func LoadFile(x *tenon.Exec, m any, name string, opts ...LoadOpt) (err error) {
	defer origin.Located("LoadFile", &err)
	opt, err := core.Only("LoadFile", opts)
	if err != nil {
		return err
	}
	f, err := safetensors.Open(name)
	if err != nil {
		return err
	}
	defer f.Close()
	var failed error
	stopped := tenon.Try(func() {
		x.Host().Scope(func(host *tenon.Exec) {
			state := map[string]*tenon.Tensor{}
			for _, a := range f.Infos() {
				var bytes []byte
				if bytes, failed = f.Read(a.Name); failed != nil {
					return
				}
				state[a.Name] = host.FromBytes(bytes, a.DType, a.Shape...)
			}
			failed = Load(x, m, state, opt)
		})
	})
	if stopped != nil {
		failed = stopped
	}
	if failed != nil {
		return fault.Wrap(fault.Invalid, failed, "cannot load %s", name)
	}
	return nil
}
