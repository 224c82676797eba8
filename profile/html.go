package profile

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
)

//go:embed page/page.html
var pageHTML string

//go:embed page/page.css
var pageCSS string

//go:embed page/page.js
var pageJS string

// pageData is the data that the page shows.
type pageData struct {
	Device     Device        `json:"device"`
	Commit     string        `json:"commit,omitempty"`
	Began      time.Time     `json:"began"`
	Duration   time.Duration `json:"duration"`
	Ops        int           `json:"ops"`
	Goroutines []int64       `json:"goroutines"`
	Streams    []int64       `json:"streams"`
	Tables     map[By][]Row  `json:"tables"`
	Spans      []pageSpan    `json:"spans"`
	Categories []Category    `json:"categories"`
	Peak       pagePeak      `json:"peak"`
	Memory     []pageMemory  `json:"memory"`
	Notes      []string      `json:"notes"`
}

type pagePeak struct {
	At    time.Duration      `json:"at"`
	Total int64              `json:"total"`
	By    map[Category]int64 `json:"by"`
}

// pageSpan is a call on a goroutine, or a kernel on a stream; lane is the number of either.
type pageSpan struct {
	Name  string        `json:"name"`
	Line  string        `json:"line,omitempty"`
	Host  bool          `json:"host"`
	Lane  int64         `json:"lane"`
	Phase Phase         `json:"phase,omitempty"`
	Depth int           `json:"depth"`
	Begin time.Duration `json:"begin"`
	End   time.Duration `json:"end"`
}

type pageMemory struct {
	At time.Duration `json:"at"`
	By []int64       `json:"by"`
}

// mostPoints bounds the points of the page's memory chart.
const mostPoints = 2000

// WriteHTML writes the profile as one self-contained page: it needs no other file and no network.
func (p *Profile) WriteHTML(w io.Writer) error {
	if err := p.usable(w); err != nil {
		return err
	}
	d, err := p.page()
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(d); err != nil { // it escapes < and >, so that no text ends the element
		return written(err)
	}
	hash := func(s string) string {
		sum := sha256.Sum256([]byte(s))
		return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
	}
	policy := fmt.Sprintf("default-src 'none'; style-src '%s'; script-src '%s'; img-src data:", hash(pageCSS), hash(pageJS))
	_, err = strings.NewReplacer("{{policy}}", policy, "{{css}}", pageCSS, "{{data}}", text.String(), "{{js}}", pageJS).WriteString(w,
		pageHTML)
	return written(err)
}

func (p *Profile) page() (*pageData, error) {
	d := &pageData{Device: p.Device, Commit: p.Commit,
		Began: p.Began, Duration: p.Duration, Ops: len(p.Ops), Goroutines: []int64{}, Streams: []int64{},
		Tables:     map[By][]Row{},
		Categories: Categories(), Memory: []pageMemory{}, Spans: []pageSpan{}, Notes: append([]string{}, p.notes()...)}
	for _, by := range []By{ByOp, ByLine, ByModule, ByTime} {
		rows, err := p.Rows(by)
		if err != nil {
			return nil, err
		}
		d.Tables[by] = append([]Row{}, rows...)
	}
	depth := make([]int, len(p.Ops))
	for i := range p.Ops {
		o := &p.Ops[i]
		if o.Parent >= 0 && o.Parent < i {
			depth[i] = depth[o.Parent] + 1
		}
		line := short(p.Line(i))
		d.Goroutines = append(d.Goroutines, o.Goroutine)
		if !p.replayed(i) {
			d.Spans = append(d.Spans, pageSpan{o.title(), line, true, o.Goroutine, o.Phase, depth[i], o.Begin, o.End})
		}
		for _, k := range o.Kernels {
			if k.Timed && !k.Whole {
				d.Streams = append(d.Streams, int64(o.Stream))
				d.Spans = append(d.Spans, pageSpan{k.Name + " of " + o.title(), line, false, int64(o.Stream), "", 0, k.Begin, k.End})
			}
		}
	}
	for _, list := range []*[]int64{&d.Goroutines, &d.Streams} {
		slices.Sort(*list)
		*list = slices.Compact(*list)
	}
	peak := p.Peak()
	d.Peak = pagePeak(peak)
	p.chart(d, peak.At)
	return d, nil
}

// chart fills in the memory over time, always including the peak.
func (p *Profile) chart(d *pageData, peak time.Duration) {
	step := max((len(p.Memory)+mostPoints-1)/mostPoints, 1)
	i := 0
	for u := range p.Usages() {
		i++
		if next := i < len(p.Memory) && p.Memory[i].At == u.At; next || i%step != 0 && u.At != peak && i != len(p.Memory) {
			continue
		}
		m := pageMemory{At: u.At}
		for _, c := range Categories() {
			m.By = append(m.By, u.By[c])
		}
		d.Memory = append(d.Memory, m)
	}
}
