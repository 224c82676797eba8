package lint

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

// Pages checks the lists of two pages: docs/architecture.md must name every package of the module in the blocks under its heading
// "Packages", and nothing else; RATIONALE.md must name every module that go.mod requires, and no other, in the first column of its table of
// dependencies.
func Pages(t *Tree) []Finding {
	var packages []string
	for _, p := range t.Packages {
		packages = append(packages, p.Dir)
	}
	const packagesPage, dependenciesPage = "docs/architecture.md", "RATIONALE.md"
	out := t.compare(packagesPage, packages, listedPackages, "package")
	text, err := fs.ReadFile(t.FS, "go.mod")
	if err != nil {
		return append(out, Finding{File: "go.mod", Msg: err.Error()})
	}
	return append(out, t.compare(dependenciesPage, required(string(text)), listedDependencies, "dependency")...)
}

// compare reports what exists and is not listed on the page, and what is listed and does not exist.
func (t *Tree) compare(page string, exist []string, list func(text string) []string, what string) []Finding {
	text, err := fs.ReadFile(t.FS, page)
	if err != nil {
		return []Finding{{File: page, Msg: err.Error()}}
	}
	var out []Finding
	listed := list(string(text))
	for _, name := range exist {
		if !slices.Contains(listed, name) {
			out = append(out, Finding{File: page, Msg: fmt.Sprintf("the %s %s is not listed; say what it is for", what, name)})
		}
	}
	for _, name := range listed {
		if !slices.Contains(exist, name) {
			out = append(out, Finding{File: page, Msg: fmt.Sprintf("the %s %s is listed, but there is none", what, name)})
		}
	}
	return out
}

// listedPackages returns the folders that the blocks under the heading "Packages" name: in each line, the words before the first run of two
// spaces. "(root)" stands for the root, and a name with "{a,b}" for both names.
func listedPackages(text string) []string {
	_, section, _ := strings.Cut(text, "\n## Packages\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var out []string
	for i, block := range strings.Split(section, "```") {
		if i%2 == 0 {
			continue
		}
		for line := range strings.Lines(strings.TrimPrefix(block, "text\n")) {
			words, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
			for _, w := range strings.Fields(words) {
				if w == "(root)" {
					out[len(out)-1] = "."
					continue
				}
				stem, set, _ := strings.Cut(w, "{")
				for _, name := range strings.Split(strings.TrimSuffix(set, "}"), ",") {
					out = append(out, stem+name)
				}
			}
		}
	}
	return out
}

// listedDependencies returns the modules in the first column of the table whose header begins with "module".
func listedDependencies(text string) []string {
	_, table, _ := strings.Cut(text, "\n| module |")
	var out []string
	for line := range strings.Lines(table) {
		switch {
		case strings.HasPrefix(line, "| `"):
			for i, part := range strings.Split(strings.SplitN(line, "|", 3)[1], "`") {
				if i%2 == 1 {
					out = append(out, part)
				}
			}
		case strings.TrimSpace(line) == "":
			return out
		}
	}
	return out
}

// required returns the modules that a go.mod requires, including indirect ones.
func required(text string) []string {
	var out []string
	block := false
	for line := range strings.Lines(text) {
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == "require" && len(words) > 2:
			out = append(out, words[1])
		case len(words) > 1 && words[1] == "(":
			block = words[0] == "require"
		case words[0] == ")":
			block = false
		case block:
			out = append(out, words[0])
		}
	}
	return out
}
