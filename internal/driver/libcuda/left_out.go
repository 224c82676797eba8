//go:build tenon_sim || !(linux || windows)

package libcuda

import "tenon.dev/internal/driver"

type leftOut struct{}

// New returns a driver without devices: every method fails with driver.NoDevice and says that this program was built without libcuda.
func New() driver.Driver { return leftOut{} }

// Started returns true: there is no library that could still be started.
func Started() bool { return true }

// Loads returns false: there is no library.
func Loads() bool { return false }

func (leftOut) Name() string { return "libcuda" }

func (leftOut) Version() (int, error) { return 0, errLeftOut("Version") }

func (leftOut) DeviceCount() (int, error) { return 0, errLeftOut("DeviceCount") }

func (leftOut) Open(int) (driver.Device, error) { return nil, errLeftOut("Open") }

func errLeftOut(call string) error {
	return &driver.Error{Call: call, Code: driver.NoDevice,
		Detail: "this program was built without libcuda (build tag tenon_sim, or a platform that NVIDIA has no driver for)"}
}
