package cli

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

type version struct{}

// Run prints one line.
func (version) Run(out io.Writer) error {
	_, err := fmt.Fprintln(out, versionLine())
	return err
}

// versionLine names the module version, the commit if the build knows it, Go and the platform.
func versionLine() string {
	module, commit := "(devel)", ""
	if info, ok := debug.ReadBuildInfo(); ok {
		if info.Main.Version != "" {
			module = info.Main.Version
		}
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				commit = " " + s.Value
			}
		}
	}
	return fmt.Sprintf("tenon %s%s, %s %s/%s", module, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}
