//go:build !tenon_sim && (darwin || windows)

package dl

// Path returns the name that the library was opened by; this platform's loader does not report the file.
func (l *Library) Path() string { return l.name }
