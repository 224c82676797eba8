package lint

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// comparison is the page whose tables map names to Tenon's, and comparisonTests the tests that run the code in them.
const (
	comparison      = "docs/from-pytorch.md"
	comparisonTests = "from_pytorch*_test.go"
)

// Snippets checks that the Go code of the documentation is code that the tests compile and run: the lines of each block that begins with
// ```go must appear in this order in one test file, and what is between backquotes in the column Tenon of docs/from-pytorch.md must appear
// in one of from_pytorch*_test.go. Every table must have a header. In both, "…" stands for any text, and so does an empty line. Indentation
// and comments at the ends of lines are ignored.
func Snippets(t *Tree) []Finding {
	var tests []string
	var compared string
	for _, p := range t.Packages {
		for _, f := range p.Files {
			if !f.Test {
				continue
			}
			tests = append(tests, plain(string(f.Text)))
			if is, _ := path.Match(comparisonTests, f.Path); is {
				compared += plain(string(f.Text))
			}
		}
	}
	return t.eachPage(func(name, text string) (out []Finding) {
		for _, s := range goBlocks(text) {
			if !anyHolds(tests, plain(s.code)) {
				out = append(out, Finding{name, s.line, "no test has the lines of this block; make it the text of an Example, so that " +
					"it is known to run"})
			}
		}
		for _, n := range headless(text) {
			out = append(out, Finding{name, n, "a table begins without a head; take out the line before it, or give it one"})
		}
		if name == comparison {
			for _, s := range tableCode(text) {
				if !holds(compared, plain(s.code)) {
					out = append(out, Finding{name, s.line, fmt.Sprintf("%s is not in %s; put it there, so that it is known to run",
						s.code, comparisonTests)})
				}
			}
		}
		return out
	})
}

// link is a Markdown link or image.
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// Links checks that the files that the pages link to exist.
func Links(t *Tree) []Finding {
	return t.eachPage(func(name, text string) (out []Finding) {
		number := 0
		for line := range strings.Lines(text) {
			number++
			for _, m := range link.FindAllStringSubmatch(line, -1) {
				file, _, _ := strings.Cut(m[1], "#")
				if file == "" || strings.Contains(file, "://") {
					continue
				}
				if _, err := fs.Stat(t.FS, path.Join(path.Dir(name), file)); err != nil {
					out = append(out, Finding{name, number, "the link to " + m[1] + " leads nowhere"})
				}
			}
		}
		return out
	})
}

// eachPage calls f with every Markdown page.
func (t *Tree) eachPage(f func(name, text string) []Finding) []Finding {
	var out []Finding
	_ = fs.WalkDir(t.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && name != "." {
			return fs.SkipDir
		}
		if err == nil && path.Ext(name) != ".md" {
			return nil
		}
		var text []byte
		if err == nil {
			text, err = fs.ReadFile(t.FS, name)
		}
		if err != nil {
			out = append(out, Finding{File: name, Msg: err.Error()})
			return nil
		}
		out = append(out, f(name, string(text))...)
		return nil
	})
	return out
}

// plain returns the text without indentation, empty lines and comments at the ends of lines.
func plain(text string) string {
	var out []string
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, " // ")
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return strings.Join(out, "\n")
}

func anyHolds(texts []string, code string) bool {
	for _, text := range texts {
		if holds(text, code) {
			return true
		}
	}
	return false
}

// holds reports whether the pieces of code between "…" occur in text one after another.
func holds(text, code string) bool {
	for _, piece := range strings.Split(code, "…") {
		_, after, found := strings.Cut(text, strings.TrimSpace(piece))
		if !found {
			return false
		}
		text = after
	}
	return true
}

// snippet is code between backquotes.
type snippet struct {
	line int
	code string
}

// goBlocks returns the Go blocks of a page, with the line where each begins. An empty line within a block becomes "…".
func goBlocks(page string) []snippet {
	var out []snippet
	number, inside := 0, false
	for line := range strings.Lines(page) {
		number++
		switch word := strings.TrimSpace(line); {
		case !inside && word == "```go":
			out, inside = append(out, snippet{line: number}), true
		case word == "```":
			inside = false
		case inside && word == "":
			out[len(out)-1].code += "…\n"
		case inside:
			out[len(out)-1].code += line
		}
	}
	return out
}

// headless returns the lines where tables without a header begin: what follows an empty line within a table.
func headless(page string) (out []int) {
	lines := strings.Split(page, "\n")
	code, before := false, false
	for i, line := range lines {
		if strings.HasPrefix(line, "```") {
			code = !code
		}
		row := !code && strings.HasPrefix(line, "|")
		if row && !before && (i+1 == len(lines) || !strings.HasPrefix(lines[i+1], "| --") && !strings.HasPrefix(lines[i+1], "|--")) {
			out = append(out, i+1)
		}
		before = row
	}
	return out
}

// tableCode returns what looks like Go in the second columns of the tables whose header there is Tenon; settings and commands do not.
func tableCode(page string) []snippet {
	var out []snippet
	number, inside := 0, false
	for line := range strings.Lines(page) {
		number++
		cells := strings.Split(strings.ReplaceAll(line, `\|`, "¦"), "|")
		if len(cells) < 4 {
			inside = false
			continue
		}
		if strings.TrimSpace(cells[2]) == "Tenon" {
			inside = true
		}
		if !inside {
			continue
		}
		for i, code := range strings.Split(cells[2], "`") {
			if i%2 == 1 && strings.ContainsAny(code, "({") {
				out = append(out, snippet{number, code})
			}
		}
	}
	return out
}
