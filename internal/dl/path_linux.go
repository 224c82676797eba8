//go:build !tenon_sim

package dl

import (
	"sync"
	"unsafe"
)

// dlinfo is the loader's query function, found once.
var dlinfo = sync.OnceValue(func() Proc {
	p, err := findSymbol(0, "dlinfo")
	if err != nil {
		return 0
	}
	return Proc(p)
})

// Path returns the file that the library was loaded from or, if the loader does not report it, the name that it was opened by.
func (l *Library) Path() string {
	const requestLinkMap = 2 // RTLD_DI_LINKMAP of dlfcn.h
	query := dlinfo()
	if query == 0 {
		return l.name
	}
	var linkMap *struct {
		addr uintptr
		name uintptr
	}
	if query.Call(l.handle, requestLinkMap, uintptr(unsafe.Pointer(&linkMap))) != 0 || linkMap == nil {
		return l.name
	}
	if path := String(linkMap.name); path != "" {
		return path
	}
	return l.name
}
