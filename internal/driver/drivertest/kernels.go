package drivertest

import _ "embed"

// The suite's kernels as kernel IR.
var (
	//go:embed testdata/saxpy.kir
	saxpyText []byte
	//go:embed testdata/spin.kir
	spinText []byte
	//go:embed testdata/illegal.kir
	illegalText []byte
	//go:embed testdata/assert.kir
	assertText []byte
)

// KIR returns the suite's kernels for devices that load driver.FormatKIR.
func KIR() Kernels {
	return Kernels{Saxpy: saxpyText, Spin: spinText, Illegal: illegalText, Assert: assertText}
}
