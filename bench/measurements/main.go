// Command measurements writes docs/measurements.md from the files in bench/runs, and docs/profiles.md from those in bench/profiles; go
// generate ./bench calls it. It measures nothing itself.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	"tenon.dev/internal/benchrun"
)

func main() {
	if err := generate(); err != nil {
		fmt.Fprintln(os.Stderr, "measurements:", err)
		os.Exit(1)
	}
}

func generate() error {
	root, err := benchrun.Root()
	if err != nil {
		return err
	}
	dir := filepath.Join(root, "bench", "runs")
	names, runs, err := benchrun.Runs(dir)
	if err != nil {
		return err
	}
	pairs, err := benchrun.ReadPairs(dir)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(root, "docs", "measurements.md"), benchrun.Page(names, runs, pairs), 0o666); err != nil {
		return err
	}
	page, err := benchrun.ProfilePage(filepath.Join(root, "bench", "profiles"))
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(root, "docs", "profiles.md"), page, 0o666)
}
