package memviz

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/snapshot"
)

// StaticOptions say what a static file holds.
type StaticOptions struct {
	// Bytes bounds what is embedded besides the page; 0 is 24 MiB. Tiles come from coarse to fine until it is spent.
	Bytes int
	// View is what the page shows first, ViewActive, ViewCached or ViewState; "" is ViewActive.
	View View
}

// static is what WriteStatic gathers.
type static struct {
	v       *viewer
	answers map[string]json.RawMessage
	stacks  map[uint32]bool
	left    int
}

const (
	staticBytes  = 24 << 20
	staticTop    = 50 // groups of a state
	staticFrames = 12
	staticStates = 48 // states of a device for which who holds what and the blocks are there, besides peaks and failures
)

// WriteStatic writes one HTML file that shows a recording, and its comparison with before if that is not nil, without a server.
func WriteStatic(w io.Writer, rec, before *Recording, opts ...StaticOptions) error {
	o, err := only("WriteStatic", opts)
	if err != nil {
		return err
	}
	if err := rec.usable(); err != nil {
		return err
	}
	s := &static{v: &viewer{rec: rec, before: before, first: cmp.Or(o.View, ViewActive)}, answers: map[string]json.RawMessage{},
		stacks: map[uint32]bool{}, left: o.Bytes}
	if s.left <= 0 {
		s.left = staticBytes
	}
	info, err := s.v.info()
	if err != nil {
		return err
	}
	info.Static = &StaticInfo{States: map[string][]int{}, Top: staticTop}
	for i := range info.Devices {
		if err := s.device(&info.Devices[i], info.Static, len(info.Devices)); err != nil {
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.stacks)) {
		if err := s.stack(id); err != nil {
			return err
		}
	}
	text, err := json.Marshal(info)
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the static file")
	}
	s.answers["info"] = text
	return s.write(w)
}

// ask stores the answer to a request.
func (s *static) ask(request string) error {
	body, isTile, err := s.get(request)
	if err != nil {
		return err
	}
	s.store(request, body, isTile)
	return nil
}

// stack stores a stack; once the room is spent only its frames with a file and a line, at most staticFrames.
func (s *static) stack(id uint32) error {
	request := "stack?id=" + strconv.FormatUint(uint64(id), 10)
	if s.left > 0 {
		return s.ask(request)
	}
	full := s.v.rec.text.stack(id)
	short := Stack{ID: id, Label: full.Label, Frames: []Frame{}}
	for _, f := range full.Frames {
		if len(short.Frames) < staticFrames && telling(snapshot.Frame{File: f.File, Line: f.Line, Name: f.Name}) {
			short.Frames = append(short.Frames, f)
		}
	}
	body, err := json.Marshal([]Stack{short})
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the static file")
	}
	s.store(request, body, false)
	return nil
}

// get answers a request.
func (s *static) get(request string) ([]byte, bool, error) {
	path, query, _ := strings.Cut(request, "?")
	q, err := url.ParseQuery(query)
	if err != nil {
		return nil, false, fault.Wrap(fault.Invalid, err, "the request %q", request)
	}
	return s.v.answer(path, q)
}

// store keeps an answer.
func (s *static) store(request string, body []byte, isTile bool) {
	if isTile {
		var z bytes.Buffer
		g, _ := gzip.NewWriterLevel(&z, gzip.BestCompression) // the level is valid
		g.Write(body)                                         // a buffer takes everything
		g.Close()
		body, _ = json.Marshal(base64.StdEncoding.EncodeToString(z.Bytes()))
	}
	s.answers[request] = body
	s.left -= len(body) + len(request)
}

// device gathers what belongs to one device. share is by how many devices the room is divided.
func (s *static) device(i *DeviceInfo, info *StaticInfo, share int) error {
	d, err := s.v.rec.device(i.Device)
	if err != nil {
		return err
	}
	keep := s.left - s.left/share
	dev := "device=" + decimal(i.Device)
	for k := range min(len(i.OOMs), staticStates) {
		o, err := s.v.rec.oom(d, k)
		if err != nil {
			return err
		}
		s.wantGroups(o.Holders)
		s.stacks[o.Stack.ID] = true
		if err := s.ask("oom?" + dev + "&index=" + decimal(k)); err != nil {
			return err
		}
	}
	if s.v.before != nil {
		for _, at := range []string{atEnd, atPeak} {
			if err := s.ask("diff?" + dev + "&at=" + at); err != nil {
				return err
			}
		}
	}
	if i.Trees > 0 {
		if err := s.ask("trees?" + dev); err != nil {
			return err
		}
	}
	states, err := s.states(i, d, dev, keep)
	if err != nil {
		return err
	}
	info.States[decimal(i.Device)] = states
	finest, err := s.tiles(i, dev, keep)
	info.FinestLevel = append(info.FinestLevel, finest)
	return err
}

// wantGroups notes the stacks of groups.
func (s *static) wantGroups(groups []Group) {
	for _, g := range groups {
		s.stacks[g.Stack] = true
	}
}

// states stores who holds what and the blocks for both peaks, the end and the failures, then for states between as long as they leave half
// of the room to the tiles, and returns them, ascending.
func (s *static) states(i *DeviceInfo, d *device, dev string, keep int) ([]int, error) {
	chosen := []int{i.PeakState, i.CachedPeak, i.Events}
	for _, o := range i.OOMs[:min(len(i.OOMs), staticStates)] {
		chosen = append(chosen, o.State)
	}
	must := len(chosen)
	for k := range staticStates {
		chosen = append(chosen, i.Events*k/staticStates)
	}
	half := keep + (s.left-keep)/2
	var stored []int
	for k, state := range chosen {
		if slices.Contains(stored, state) || k >= must && s.left < half {
			continue
		}
		stored = append(stored, state)
		st, err := s.v.rec.at(d, state, staticTop, "")
		if err != nil {
			return nil, err
		}
		s.wantGroups(st.Groups)
		for _, g := range s.v.rec.blocks(d, state).Segments {
			s.stacks[g.Stack] = true
			for _, b := range g.Blocks {
				s.stacks[b.Stack] = true
			}
		}
		if err := s.ask("at?" + dev + "&state=" + decimal(state) + "&top=" + decimal(staticTop)); err != nil {
			return nil, err
		}
		if err := s.ask("blocks?" + dev + "&state=" + decimal(state)); err != nil {
			return nil, err
		}
	}
	slices.Sort(stored)
	return stored, nil
}

// tiles stores tiles of both views from coarse to fine, whole levels, as long as keep bytes remain, and returns the finest level. The
// coarsest is always there.
func (s *static) tiles(i *DeviceInfo, dev string, keep int) (finest int, err error) {
	finest = i.TopLevel
	for level := i.TopLevel; level >= 0; level-- {
		type answer struct {
			request string
			body    []byte
		}
		var all []answer
		size := 0
		for index := 0; index*TileColumns<<level < i.States; index++ {
			for _, view := range []View{ViewActive, ViewCached} {
				request := fmt.Sprintf("tile?%s&view=%s&level=%d&index=%d", dev, view, level, index)
				body, _, err := s.get(request)
				if err != nil {
					return 0, err
				}
				all = append(all, answer{request, body})
				if size += len(body); level < i.TopLevel && size/staticPacking > s.left-keep {
					return finest, nil
				}
			}
		}
		for _, a := range all {
			s.store(a.request, a.body, true)
			for _, id := range Tile(a.body).stacks() {
				s.stacks[id] = true
			}
		}
		finest = level
	}
	return finest, nil
}

// staticPacking is by how much tiles shrink at least in practice when compressed, base64 included.
const staticPacking = 3

var (
	scriptTag = regexp.MustCompile(`<script\s+src="([^"]+)"[^>]*></script>`)
	styleTag  = regexp.MustCompile(`<link\s+rel="stylesheet"\s+href="([^"]+)"\s*/?>`)
	headTag   = regexp.MustCompile(`<head>`)
)

// write puts the page together.
func (s *static) write(w io.Writer) error {
	html, err := fs.ReadFile(page(), "index.html")
	if err != nil {
		return fault.Wrap(fault.Invalid, err, "the page")
	}
	var hashes []string
	hash := func(text []byte) []byte {
		sum := sha256.Sum256(text)
		hashes = append(hashes, "'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'")
		return text
	}
	file := func(name []byte) []byte {
		b, e := fs.ReadFile(page(), string(name))
		if e != nil && err == nil {
			err = fault.Wrap(fault.Invalid, e, "the page")
		}
		return hash(b)
	}
	// json.Marshal writes < as <, so nothing in the text ends the element.
	text, e := json.Marshal(s.answers)
	if e != nil {
		return fault.Wrap(fault.Invalid, e, "the static file")
	}
	data := slices.Concat([]byte(`<script id="tenon-static" type="application/json">`), text, []byte("</script>\n"))
	// Scripts go to the end of the body, where what they look for exists; deferred ones would have run there.
	var scripts []byte
	html = scriptTag.ReplaceAllFunc(html, func(tag []byte) []byte {
		scripts = slices.Concat(scripts, []byte("<script>"), file(scriptTag.FindSubmatch(tag)[1]), []byte("</script>\n"))
		return nil
	})
	html = styleTag.ReplaceAllFunc(html, func(tag []byte) []byte {
		return slices.Concat([]byte("<style>"), file(styleTag.FindSubmatch(tag)[1]), []byte("</style>"))
	})
	if err != nil {
		return err
	}
	csp := `<head><meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; script-src ` +
		strings.Join(hashes, " ") +
		`; style-src ` + strings.Join(hashes, " ") + `">`
	html = headTag.ReplaceAllLiteral(html, []byte(csp))
	end := bytes.LastIndex(html, []byte("</body>"))
	if end < 0 {
		end = len(html)
	}
	for _, part := range [][]byte{html[:end], data, scripts, html[end:]} {
		if _, err := w.Write(part); err != nil {
			return fault.Wrap(fault.System, err, "writing the static file")
		}
	}
	return nil
}
