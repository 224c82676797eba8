//go:build !tenon_sim && (linux || darwin)

package dl

import "github.com/ebitengine/purego"

func openLibrary(name string) (uintptr, error) {
	// RTLD_LOCAL: two libraries may have the same symbol names (each vendor library brings its own runtime).
	return purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
}

func findSymbol(handle uintptr, name string) (uintptr, error) { return purego.Dlsym(handle, name) }

func closeLibrary(handle uintptr) error { return purego.Dlclose(handle) }
