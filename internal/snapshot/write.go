package snapshot

import (
	"io"
	"maps"
	"slices"

	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// Write writes the snapshot as a pickle of protocol 4, in the layout of PyTorch's torch.cuda.memory._snapshot, which
// torch.cuda._memory_viz and its viewer page open. Equal stacks are one shared object. Settings of other types than the snapshot's
// own are an error.
func (s *Snapshot) Write(w io.Writer) error {
	p := &writer{Writer: pickle.NewWriter(w), s: s}
	if s.Stacks != nil {
		p.stacks = make([]uint32, s.Stacks.Len())
		p.frames = make([]uint32, s.Stacks.FrameCount())
	}
	p.EmptyDict()
	p.Mark()
	p.String("segments")
	p.list(len(s.Segments), func(i int) { p.segment(&s.Segments[i]) })
	p.String("device_traces")
	p.list(len(s.Traces), func(device int) {
		trace := s.Traces[device]
		p.list(len(trace), func(i int) { p.event(&trace[i]) })
	})
	p.String("allocator_settings")
	p.setting(s.settings())
	p.String("external_annotations")
	p.list(len(s.Annotations), func(i int) { p.annotation(&s.Annotations[i]) })
	if len(s.Trees) > 0 {
		p.String("graph_trees")
		p.list(min(len(s.Trees), maxTrees), func(i int) { p.tree(&s.Trees[i]) })
	}
	p.SetItems()
	if err := p.Close(); err != nil {
		return err
	}
	return p.err
}

func (s *Snapshot) settings() map[string]any {
	if s.Settings == nil {
		return map[string]any{}
	}
	return s.Settings
}

// writer writes the parts of a snapshot. The memo's number of a stack or frame is one less than its entry; 0 is: not written yet.
type writer struct {
	*pickle.Writer
	s              *Snapshot
	stacks, frames []uint32
	// keys and actions are the strings of trace entries, likewise.
	keys    [fieldBlocks + 1]uint32
	actions [len(actionNames)]uint32
	err     error
}

// known writes a string of the layout, whose place in the memo is kept in at.
func (p *writer) known(at *uint32, s string) {
	if *at != 0 {
		p.Get(*at - 1)
		return
	}
	*at = p.String(s) + 1
}

// listBatch is how many items are added to a list at a time, which is what Python does; PyTorch's page fails with very many.
const listBatch = 1000

func (p *writer) list(n int, item func(i int)) {
	p.EmptyList()
	for i := 0; i < n; i += listBatch {
		p.Mark()
		for k := i; k < min(n, i+listBatch); k++ {
			item(k)
		}
		p.Appends()
	}
}

func (p *writer) uint(key string, n uint64) {
	p.String(key)
	p.Uint(n)
}

func (p *writer) text(key, s string) {
	p.String(key)
	p.String(s)
}

func (p *writer) segment(g *Segment) {
	p.EmptyDict()
	p.Mark()
	p.String("device")
	p.Int(int64(g.Device))
	p.uint("address", g.Addr)
	p.uint("total_size", g.TotalSize)
	p.uint("allocated_size", g.Allocated)
	p.uint("active_size", g.Active)
	p.uint("requested_size", g.Requested)
	p.uint("stream", g.Stream)
	p.text("segment_type", g.Type)
	p.String("segment_pool_id")
	p.Uint(g.Pool[0])
	p.Uint(g.Pool[1])
	p.Pair()
	p.String("is_expandable")
	p.Bool(g.Expandable)
	p.stack(g.Stack)
	p.String("blocks")
	p.list(len(g.Blocks), func(i int) { p.block(&g.Blocks[i]) })
	p.SetItems()
}

func (p *writer) block(b *Block) {
	p.EmptyDict()
	p.Mark()
	p.uint("address", b.Addr)
	p.uint("size", b.Size)
	p.uint("requested_size", b.Requested)
	p.text("state", b.State.String())
	p.stack(b.Stack)
	p.SetItems()
}

func (p *writer) event(e *Event) {
	p.EmptyDict()
	p.Mark()
	p.known(&p.keys[fieldAction], "action")
	if int(e.Action) < len(actionNames) {
		p.known(&p.actions[e.Action], actionNames[e.Action])
	} else {
		p.String(e.Action.String())
	}
	if e.Action == ActionOOM {
		p.known(&p.keys[fieldDeviceFree], "device_free")
	} else {
		p.known(&p.keys[fieldAddr], "addr")
	}
	p.Uint(e.Addr)
	p.known(&p.keys[fieldSize], "size")
	p.Uint(e.Size)
	p.known(&p.keys[fieldStream], "stream")
	p.Uint(e.Stream)
	p.known(&p.keys[fieldTime], "time_us")
	p.Int(e.TimeUS)
	if int(e.Note) < len(p.s.Notes) && e.Note != 0 {
		n := &p.s.Notes[e.Note]
		p.text("compile_context", n.CompileContext)
		p.text("user_metadata", n.UserMetadata)
	}
	if e.Category != CategoryNone {
		p.text("category", e.Category.String())
	}
	if e.Stack != 0 {
		p.stack(e.Stack)
	}
	p.SetItems()
}

// stack writes "frames" and the list of a stack's frames.
func (p *writer) stack(id StackID) {
	p.known(&p.keys[fieldFrames], "frames")
	if id == 0 || int(id) >= len(p.stacks) {
		p.EmptyList()
		return
	}
	if at := p.stacks[id]; at != 0 {
		p.Get(at - 1)
		return
	}
	p.EmptyList()
	p.stacks[id] = p.Memoize() + 1
	p.Mark()
	for _, f := range p.s.Stacks.Calls(id) {
		p.frame(f)
	}
	p.Appends()
}

func (p *writer) frame(id FrameID) {
	if at := p.frames[id]; at != 0 {
		p.Get(at - 1)
		return
	}
	f := p.s.Stacks.Frame(id)
	p.EmptyDict()
	p.frames[id] = p.Memoize() + 1
	p.Mark()
	p.text("name", f.Name)
	p.text("filename", f.File)
	p.String("line")
	p.Int(int64(f.Line))
	p.SetItems()
}

func (p *writer) annotation(a *Annotation) {
	p.EmptyDict()
	p.Mark()
	p.text("stage", a.Stage)
	p.text("name", a.Name)
	p.String("device")
	p.Int(int64(a.Device))
	p.String("time_us")
	p.Int(a.TimeUS)
	p.SetItems()
}

// setting writes a setting's value; keys of maps are sorted.
func (p *writer) setting(v any) {
	switch v := v.(type) {
	case nil:
		p.None()
	case bool:
		p.Bool(v)
	case int64:
		p.Int(v)
	case float64:
		p.Float(v)
	case string:
		p.String(v)
	case map[string]any:
		p.EmptyDict()
		p.Mark()
		for _, k := range slices.Sorted(maps.Keys(v)) {
			p.String(k)
			p.setting(v[k])
		}
		p.SetItems()
	default:
		p.None()
		if p.err == nil {
			p.err = fault.New(fault.Invalid, "a setting has a value of type %T; settings are bool, int64, float64, string and "+
				"map[string]any", v)
		}
	}
}
