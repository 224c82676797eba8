// Tenon provides the command-line tools of Tenon: doctor reports what a machine has, memviz shows memory snapshots, memreplay replays
// them under other settings, memcheck runs tests under a memory checker, profile shows recorded profiles, compile explains how a
// program's calls ran. It must not depend on anything but package internal/cli, which holds the commands.
package main

import (
	"os"

	"tenon.dev/internal/cli"
)

func main() { os.Exit(cli.Main(os.Args[1:], os.Stdout, os.Stderr)) }
