// Package testdevice opens devices for tests and reads their memory.
// It must not depend on what is tested, except on core to count storages.
package testdevice

import (
	"runtime"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/core"
)

// Open opens the device that s names until the test ends. An error of its Close, which tells what failed on the device, fails the test.
func Open(t testing.TB, s tenon.Selector) *tenon.Exec {
	t.Helper()
	x, err := tenon.Open(s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// Storages returns how many storages of the process hold device memory, after those that earlier tests left to the garbage collector were
// freed.
func Storages() int {
	for n := core.LiveStorages(); ; {
		runtime.GC()
		time.Sleep(time.Millisecond) // the collector's cleanups run on their own
		before := n
		if n = core.LiveStorages(); n == before {
			return n
		}
	}
}

// Read returns the elements of a. An error ends the test.
func Read[T dtype.Element](t testing.TB, x *tenon.Exec, a *tenon.Tensor) []T {
	t.Helper()
	v, err := tenon.Read[T](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
