package lint

import (
	"bytes"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
)

// foreign are words and paths about how or where the project was written rather than about the project. They are assembled from parts, so
// that this file does not contain them. What matches has one of the parts, in lower case. Most files have none of them, and looking for
// parts is much faster than the expressions.
var foreign = []struct {
	parts   []string
	pattern *regexp.Regexp
	what    string
}{
	{[]string{"/wo" + "rk/", "/ro" + "ot/", "/home/"},
		regexp.MustCompile(`(^|[^\w./])/(wo` + `rk|ro` + `ot|home)/\w`), "a path of somebody's machine"},
	{[]string{"iss" + "ue "}, regexp.MustCompile(`(?i)\b(in|of|see|per|by|for) iss` + `ue #?\d`), "the number of a plan's item"},
	{[]string{"iss" + "ue #"}, regexp.MustCompile(`(?i)\biss` + `ue #\d`), "the number of a plan's item"},
	{[]string{"work" + "place"}, regexp.MustCompile(`(?i)\bwork` + `place\b`), "the place of work"},
	{[]string{" ses" + "sion"},
		regexp.MustCompile(`(?i)\b(this|earlier|previous|next|last|later|another) (work(ing)? |coding |developer )?ses` +
			`sion('s)? (of work|did|left|will|wrote|has)`), "a sitting of work"},
	{[]string{"ag" + "ent"}, regexp.MustCompile(`(?i)\b(sub-?|helper |coding |AI )ag` + `ents?\b`), "who wrote it"},
	{[]string{"brief ", "col" + "league"},
		regexp.MustCompile(`(?i)\b(the|your|a) (brief says|brief tells|col` + `league('s)? )`), "who wrote it"},
	{[]string{"proxy.", "registry.np", "deb.deb", "files.pytho"},
		regexp.MustCompile(`(?i)proxy\.gol` + `ang\.org|registry\.np` + `mjs|deb\.deb` + `ian\.org|files\.pytho` +
			`nhosted|go` + `proxy\.`), "a registry's host"},
	{[]string{".lib" + "rary/", "shared/"},
		regexp.MustCompile(`(?i)\.lib` + `rary/|shared/(DES` + `IGN|spec/|torch/|seeds/)`), "a path outside the repository"},
}

// skipDirs are folders of the root that belong to tools or to whoever works there.
var skipDirs = map[string]bool{".git": true, ".carry": true, ".tools": true, ".device": true, "bin": true, "node_modules": true}

// Words checks every text file of the tree, code or not: the project speaks only of itself.
func Words(fsys fs.FS) ([]Finding, error) {
	var out []Finding
	err := fs.WalkDir(fsys, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if skipDirs[d.Name()] {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() || p == "go.sum" {
			return nil
		}
		text, err := fs.ReadFile(fsys, p)
		if err != nil {
			return err
		}
		if bytes.IndexByte(text[:min(len(text), 8192)], 0) >= 0 {
			return nil
		}
		small := strings.ToLower(string(text))
		for _, w := range foreign {
			if !slices.ContainsFunc(w.parts, func(part string) bool { return strings.Contains(small, part) }) {
				continue
			}
			for i, line := range strings.Split(string(text), "\n") {
				if m := w.pattern.FindString(line); m != "" {
					out = append(out, Finding{File: p, Line: i + 1, Msg: fmt.Sprintf("%q names %s: the project speaks of itself alone",
						strings.TrimSpace(m), w.what)})
				}
			}
		}
		return nil
	})
	return out, err
}
