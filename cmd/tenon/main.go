// Tenon is the command-line tools of Tenon: doctor says what a machine has, memviz shows memory snapshots, memreplay replays them under other
// settings, memcheck runs tests under a memory checker, compile explains what became of calls that were put off.
// It may not know what the commands do: package internal/cli holds them.
package main

import (
	"os"

	"tenon.dev/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
