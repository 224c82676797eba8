package nn

import "tenon.dev"

// Checkpoint returns m's output for in and keeps nothing but in for the backward pass, which runs m again; see tenon.Exec.Checkpoint.
// Running statistics of m, such as BatchNorm's, are updated twice.
func Checkpoint(x *tenon.Exec, m Module, in *tenon.Tensor) *tenon.Tensor {
	if m == nil {
		fail("Checkpoint", "the module is nil; give it one")
	}
	return x.Checkpoint(func(x *tenon.Exec, ins []*tenon.Tensor) []*tenon.Tensor {
		return []*tenon.Tensor{m.Forward(x, ins[0])}
	}, in)[0]
}

// CheckpointSequential returns s's output for in. It divides s into segments of equal length, with the remaining modules in the last one,
// and checkpoints all but the last, which comes first in the backward pass, as torch.utils.checkpoint.checkpoint_sequential does.
func CheckpointSequential(x *tenon.Exec, s Sequential, segments int, in *tenon.Tensor) *tenon.Tensor {
	if segments < 1 || segments > len(s) {
		fail("CheckpointSequential", "%d modules cannot be divided into %d segments", len(s), segments)
	}
	size := len(s) / segments
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		t := in
		for i := range segments - 1 {
			out := Checkpoint(x, s[i*size:(i+1)*size], t)
			if t != out && temporary(x, t) {
				t.Close()
			}
			t = out
		}
		return s[(segments-1)*size:].Forward(x, t)
	})
}
