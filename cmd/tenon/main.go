// Tenon looks at what Tenon finds on a machine: tenon doctor, tenon version.
// It may not know what the commands do: package internal/cli holds them.
package main

import (
	"os"

	"tenon.dev/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
