package core

import "testing"

func TestOpNameOf(t *testing.T) {
	const exec = "tenon.dev/internal/core.(*Exec)."
	for f, want := range map[string]string{
		exec + "Rand": "rand", exec + "RandN": "randn", exec + "Add": "add", exec + "AddInto": "add", exec + "AddS": "add",
		exec + "FullC": "full",
		exec + "Zeros": "zeros", exec + "Linear": "linear", exec + "LogSoftmax": "log_softmax", exec + "Dropout": "dropout",
		exec + "Backward":     "backward",
		exec + "Linear.func1": "", exec + "composite": "", exec: "", "tenon.dev/internal/core.(*Tensor).Close": "", "main.main": "",
	} {
		if got := opNameOf(f); got != want {
			t.Errorf("%s is %q, want %q", f, got, want)
		}
	}
}
