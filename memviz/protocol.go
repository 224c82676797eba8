package memviz

// This file is what the page and the Go side agree on. The page asks with GET for paths below the directory it was loaded from; a static
// file carries the answers instead. All answers but tiles are JSON of the types below; field names are as the tags say.
//
//	info                                                   Info
//	tile?device=D&view=V&level=L&index=I[&filter=Q][&min=B][&lo=B&hi=B]   a tile, binary, see Tile
//	at?device=D&state=S&top=N[&filter=Q]                   State: who holds what
//	blocks?device=D&state=S                                BlockMap: segments and blocks, for "Allocator State History"
//	events?device=D&from=E&count=N                         EventList: the trace itself
//	alloc?device=D&view=V&id=A                             Allocation
//	search?device=D&q=Q&limit=N                            SearchResult
//	oom?device=D&index=K                                   OOM
//	diff?device=D&at=end|peak                              Diff, if Info.Diff is not empty
//	trees?device=D                                         []GraphPool, if DeviceInfo.Trees is not 0
//	stack?id=S1,S2,...                                     []Stack, in that order
//
// Parameters stand in the order given here, optional ones are left out when they have their default, and values are escaped as
// encodeURIComponent does, so that the text of a request is also its key in a static file. A wrong request is answered with status 400 and
// an Error. Numbers of bytes go up to 2^53 exactly. Addresses are text ("0x7f4d0c000000"), since they do not fit a JavaScript number.
//
// # States and events
//
// A device's trace of n events has n+1 states: state 0 is before the first event, state s is after event s-1. Everything on a horizontal
// axis is a state. An allocation lives in the states [start, end); start 0 means that it was there before the trace begins, end n+1 that it
// is still there when it ends.
//
// # The page
//
// The page is folder page: index.html with every script as <script src="NAME.js" defer></script> and every style as
// <link rel="stylesheet" href="NAME.css">, nothing inline, no modules, no other files (the icon may be a data: URL). The server sends
//
//	Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; …
//
// so style attributes in HTML text do not work, but element.style from a script does. A static file has the same scripts and styles put
// inline and, before them, one element
//
//	<script id="tenon-static" type="application/json">{"tile?device=0&view=active&level=8&index=0":"b64…","info":{…}}</script>
//
// an object from request text to answer: a JSON value, or for tiles a string of base64 of the gzip-compressed tile (the page opens it with
// DecompressionStream). Not every request is in it: info, the tiles from the coarsest level down to StaticInfo.FinestLevel without the
// optional parameters, at and blocks for the states of StaticInfo.States (top=StaticInfo.Top), every oom, diff, trees, and the stacks that
// these name as requests of one stack each ("stack?id=17"). What is missing cannot be had; the page says so.

// View is something that the page can show: an element of Info.Views, and the view parameter of requests.
type View string

// The views.
const (
	ViewActive View = "active" // "Active Memory Timeline": alloc to free_completed
	ViewCached View = "cached" // "Active Cached Memory Timeline": segments, segment_alloc or segment_map to segment_free or segment_unmap
	ViewState  View = "state"  // "Allocator State History": blocks in segments; asked with at, blocks and events
)

// TileColumns is the number of columns of a tile. At level L a column is 2^L states wide, so tile I of level L begins at state
// I*TileColumns<<L; the last tile of a level has fewer columns. Levels go from 0 to DeviceInfo.TopLevel, where one tile holds everything.
const TileColumns = 512

// TileStrips is the most strips that a tile has: those of the largest area (bytes times states).
const TileStrips = 2048

// Tile is the binary form of a piece of a timeline. All numbers are little-endian. The header has 64 bytes:
//
//	 0 uint32  magic "TNTL" (0x4c544e54)
//	 4 uint16  version 1
//	 6 uint16  0
//	 8 uint32  level
//	12 uint32  index
//	16 uint32  C, columns here (1..TileColumns)
//	20 uint32  S, strips here (0..TileStrips)
//	24 uint32  P, steps of all strips together
//	28 uint32  allocations that cross a column here and got no strip
//	32 float64 state of the first column
//	40 float64 states a column (2^level)
//	48 float64 the greatest total here, in bytes
//	56 float64 the smallest size that gets a strip, in bytes
//
// Then these arrays, each padded at its end to a multiple of 8 bytes:
//
//	float64 peak[C]     greatest total of the states of the column, in bytes: the silhouette
//	float64 total[C]    total in the column's first state: where the strips of that column end
//	float64 time[C]     microseconds since 1970 of the column's first state
//	float64 size[S]     bytes: height of the strip
//	uint32  id[S]       the allocation's number, the same in all tiles of the view, for alloc?id=
//	uint32  stack[S]    for stack?id=; 0 is no stack
//	uint32  start[S]    its states [start, end), which may reach beyond the tile
//	uint32  end[S]
//	uint32  marks[S]    bits 0–7 index into DeviceInfo.Streams, 8–15 into DeviceInfo.Pools, 16–23 category (index into Info.Categories),
//	                    24: was there before the trace, 25: is there at its end, 26: was freed later than asked (other streams used it)
//	uint32  column[2*S] first column it is in, and the one after the last
//	uint32  step[S+1]   its steps are [step[i], step[i+1])
//	float64 offset[P]   bytes below the strip, from the step's column on
//	uint32  at[P]       column of the step, ascending within a strip; the first is its first column
//
// Strips are stacked as PyTorch's viewer does, oldest at the bottom: a strip's offset is the sum of all older allocations that live in that
// state, drawn or not, and falls when one of them is freed. Strips come oldest first and never overlap. What is between them and below peak
// belongs to allocations without a strip: too small, or too short to cross a column's first state; the page paints the silhouette in a
// quiet colour first and strips over it. Because offsets count what is not drawn, tiles and levels fit each other exactly.
//
// The optional parameters serve vertical zoom: min is the smallest size to give a strip (default: 1/2048 of the view's greatest total), and
// only strips that meet the bytes [lo, hi) are sent. Offsets are exact to a quarter of min. Use powers of two for min and for hi-lo, and
// multiples of (hi-lo)/2 for lo, so that answers are found again in the cache.
type Tile []byte

// Error is the answer to a wrong request.
type Error struct {
	Error string `json:"error"` // one sentence
}

// Info says what a file holds.
type Info struct {
	File     string         `json:"file"`           // name of the snapshot, without its folder
	Diff     string         `json:"diff,omitempty"` // the file that it is compared with
	Devices  []DeviceInfo   `json:"devices"`        // those with events or segments; a request's device is DeviceInfo.Device
	Settings map[string]any `json:"settings"`       // the allocator's, PyTorch's names
	// names of the categories; "" for none. PyTorch's: parameter, gradient, activation, …
	Categories  []string    `json:"categories"`
	Categorised bool        `json:"categorised"`      // some allocation has one
	Views       []View      `json:"views"`            // what the page can show: ViewActive, ViewCached, ViewState
	First       View        `json:"first"`            // the view to begin with, one of Views
	Stacks      int         `json:"stacks"`           // number of stacks; IDs are below it
	Static      *StaticInfo `json:"static,omitempty"` // what a static file holds; nil from a server
}

// StaticInfo says what a static file holds besides info.
type StaticInfo struct {
	FinestLevel []int            `json:"finest_level"` // by position in Info.Devices
	States      map[string][]int `json:"states"`       // device number to states that at and blocks are there for, ascending
	Top         int              `json:"top"`          // the parameter top of its requests at
}

// DeviceInfo says what one device's trace holds. Sizes are bytes.
type DeviceInfo struct {
	Device      int        `json:"device"`            // its number
	Events      int        `json:"events"`            // entries of the trace
	States      int        `json:"states"`            // Events+1
	TopLevel    int        `json:"top_level"`         // of tiles
	TimeStart   int64      `json:"time_start_us"`     // of the first event, microseconds since 1970
	TimeEnd     int64      `json:"time_end_us"`       // of the last event
	MaxActive   uint64     `json:"max_active"`        // greatest total of ViewActive, which counts requested bytes where the trace does
	PeakState   int        `json:"peak_state"`        // first state with it
	MaxCached   uint64     `json:"max_cached"`        // of ViewCached
	CachedPeak  int        `json:"cached_peak_state"` // first state with MaxCached
	EndActive   uint64     `json:"end_active"`        // total of ViewActive in the last state
	EndCached   uint64     `json:"end_cached"`        // total of ViewCached in the last state
	Allocations int        `json:"allocations"`       // allocations of ViewActive; their IDs are below it
	Segments    int        `json:"segments"`          // of the snapshot
	Streams     []string   `json:"streams"`           // handles, "0" is the default stream
	Pools       []string   `json:"pools"`             // "(0,0)" is the default pool; "" stands for unknown, and is the first
	Trees       int        `json:"trees"`             // pools of compiled regions
	OOMs        []OOMPoint `json:"ooms"`              // failed allocations, oldest first, at most 10,000
	Marks       []Mark     `json:"marks"`             // annotations of the program, at most 10,000
}

// OOMPoint is where an allocation failed.
type OOMPoint struct {
	State int    `json:"state"` // the state after the failure
	Size  uint64 `json:"size"`  // bytes that were wanted
}

// Mark is a named range on the time axis, such as a step of the optimizer.
type Mark struct {
	Name  string `json:"name"`  // what the program calls it
	Start int    `json:"start"` // states [Start, End)
	End   int    `json:"end"`   // the state after its last; the number of states where it does not end
}

// Frame is one call of a stack.
type Frame struct {
	File string `json:"file"` // path as recorded
	Line int    `json:"line"` // 0 if unknown
	Name string `json:"name"` // function or operation
}

// Stack is a stack of calls, innermost first.
type Stack struct {
	ID     uint32  `json:"id"`     // for stack?id=; 0 is no stack
	Label  string  `json:"label"`  // the innermost frame that says something, "file.py:12:name", for lists
	Frames []Frame `json:"frames"` // innermost first
}

// State says who holds what in one state, and is the peak explainer when asked for DeviceInfo.PeakState.
type State struct {
	State  int     `json:"state"`
	TimeUS int64   `json:"time_us"`         // of the event that led to it, microseconds since 1970
	Event  *Event  `json:"event,omitempty"` // that led to it; none for state 0
	Active uint64  `json:"active"`          // bytes of live allocations; with a filter of those that match
	Count  int     `json:"count"`           // live allocations
	Cached uint64  `json:"cached"`          // bytes in segments
	Groups []Group `json:"groups"`          // by stack, most bytes first, at most top
	Rest   Group   `json:"rest"`            // all other stacks together; stack 0
	Stacks int     `json:"stacks"`          // different stacks in all
}

// Group is what the allocations of one stack hold.
type Group struct {
	Stack   uint32 `json:"stack"`   // its number; 0 is no stack
	Label   string `json:"label"`   // as Stack.Label
	Bytes   uint64 `json:"bytes"`   // sum of the sizes
	Count   int    `json:"count"`   // allocations
	Largest uint64 `json:"largest"` // its largest allocation
	Oldest  int    `json:"oldest"`  // start of the oldest, a state
}

// BlockMap is memory as the allocator sees it in one state.
type BlockMap struct {
	State    int       `json:"state"`    // the state that was asked for
	Segments []Segment `json:"segments"` // by address
	// Strays are live allocations in no segment that the file knows of.
	Strays []Block `json:"strays"`
}

// Segment is memory from the driver; what is between its blocks is free.
type Segment struct {
	Addr       string  `json:"addr"`       // device address
	Size       uint64  `json:"size"`       // bytes
	ID         uint32  `json:"id"`         // in ViewCached
	Stream     int     `json:"stream"`     // index into DeviceInfo.Streams
	Pool       int     `json:"pool"`       // index into DeviceInfo.Pools
	Kind       string  `json:"kind"`       // "small", "large", or "" where that is not known
	Expandable bool    `json:"expandable"` // pages of an expandable segment, neighbours joined
	Stack      uint32  `json:"stack"`      // of the allocation for which the driver was asked
	Active     uint64  `json:"active"`     // bytes
	Largest    uint64  `json:"largest"`    // largest free piece, bytes
	Blocks     []Block `json:"blocks"`     // by address
}

// Block is a live allocation in a segment.
type Block struct {
	Offset  uint64 `json:"offset"`  // from the segment's address; of a stray its address as a number, which may be rounded
	Size    uint64 `json:"size"`    // bytes, as far as the file tells: rounded by the allocator in the last state, requested elsewhere
	ID      uint32 `json:"id"`      // in ViewActive
	Stack   uint32 `json:"stack"`   // of its allocation
	Pending bool   `json:"pending"` // freed, waiting for other streams
}

// Event is one entry of the trace.
type Event struct {
	Index      int    `json:"index"`                 // in the trace, from 0
	Action     string `json:"action"`                // PyTorch's name
	Addr       string `json:"addr"`                  // "" for oom
	Size       uint64 `json:"size"`                  // bytes
	DeviceFree uint64 `json:"device_free,omitempty"` // of oom
	Stream     string `json:"stream"`                // handle; "0" is the default stream
	TimeUS     int64  `json:"time_us"`               // microseconds since 1970
	Stack      uint32 `json:"stack"`                 // its number; 0 is no stack
	Label      string `json:"label"`                 // of the stack
	Note       string `json:"note,omitempty"`        // what the program or the compiler noted
}

// EventList is a piece of the trace, for the list beside the block map.
type EventList struct {
	From   int     `json:"from"`   // index of the first
	Total  int     `json:"total"`  // events of the trace
	Events []Event `json:"events"` // in the order of the trace
}

// Allocation is all that is known of one.
type Allocation struct {
	ID       uint32 `json:"id"`       // in its view
	Addr     string `json:"addr"`     // device address
	Size     uint64 `json:"size"`     // bytes requested, where the trace tells
	Stream   string `json:"stream"`   // handle of the stream it was allocated on
	Pool     string `json:"pool"`     // as DeviceInfo.Pools has it
	Category string `json:"category"` // "" for none
	Start    int    `json:"start"`    // states [Start, End)
	Freed    int    `json:"freed"`    // state in which the owner had freed it; End where nobody did
	End      int    `json:"end"`      // the state after its last
	StartUS  int64  `json:"start_us"` // 0 if before the trace
	EndUS    int64  `json:"end_us"`   // 0 if it is still there
	Before   bool   `json:"before"`   // it was there before the trace
	Stays    bool   `json:"stays"`    // it is there at the end
	Stack    Stack  `json:"stack"`    // of the allocation
}

// SearchResult lists allocations of ViewActive. The query language: words separated by spaces, all of which must hold; a plain word must
// occur in a frame of the stack (file:line:name, letter case ignored; "quotes" keep spaces together); size>=10MiB, size<1k, size=512 and
// the like compare bytes; stream:0, pool:0,1, category:gradient, addr:0x7f…, state:123 (lives in it), event:122 (the state after it) and
// id:5 select; a leading - negates a word; stack:17 selects by the number of the stack; graph:7 the live outputs of a GraphNode by its ID,
// tree:7 also of those after it, and of ViewCached the segments that they need. The same text is the filter of tiles, also of ViewCached,
// and states: a filtered tile or state is that of a trace in which only the matching allocations happen, so their strips are stacked
// without the others (and keep their numbers).
type SearchResult struct {
	Query   string       `json:"query"`   // as it was asked
	Count   int          `json:"count"`   // of all that match
	Bytes   uint64       `json:"bytes"`   // of all that match
	Results []Allocation `json:"results"` // largest first, at most limit; the frames are left out
	Groups  []Group      `json:"groups"`  // by stack, most bytes first, at most 50
}

// OOM explains why an allocation failed.
type OOM struct {
	State      int      `json:"state"`       // the state after the failure
	Size       uint64   `json:"size"`        // wanted, rounded by the allocator
	DeviceFree uint64   `json:"device_free"` // what the driver had left
	Stream     string   `json:"stream"`      // handle of the stream that the request was for
	TimeUS     int64    `json:"time_us"`     // microseconds since 1970
	Stack      Stack    `json:"stack"`       // of the request
	Active     uint64   `json:"active"`      // bytes of live allocations
	Cached     uint64   `json:"cached"`      // bytes in segments
	Free       uint64   `json:"free"`        // cached and not active
	Summary    []string `json:"summary"`     // sentences, the most telling first, with a remedy where there is one
	// Reasons groups every free piece of cached memory by why it could not serve, most bytes first.
	Reasons []Reason `json:"reasons"`
	// Candidates are the largest free pieces, at most 20.
	Candidates []Candidate `json:"candidates"`
	Holders    []Group     `json:"holders"` // who held memory then
}

// Reason is one cause for which free memory could not serve.
type Reason struct {
	Why     string `json:"why"`     // "too small", "other stream", "other pool", "other kind", "split limit", "unexplained"
	Text    string `json:"text"`    // a sentence
	Pieces  int    `json:"pieces"`  // how many
	Bytes   uint64 `json:"bytes"`   // of all of them
	Largest uint64 `json:"largest"` // bytes of the largest
}

// Candidate is a free piece.
type Candidate struct {
	Addr    string `json:"addr"`    // device address
	Size    uint64 `json:"size"`    // bytes
	Stream  string `json:"stream"`  // handle of its segment's stream
	Pool    string `json:"pool"`    // as DeviceInfo.Pools has it
	Kind    string `json:"kind"`    // as Segment.Kind
	Segment string `json:"segment"` // address of its segment
	Why     string `json:"why"`     // as Reason.Why
	// Before and After are the allocations that hem it in, IDs in ViewActive; -1 at the segment's ends.
	Before int `json:"before"`
	After  int `json:"after"`
}

// GraphPool is a private pool that the graphs of package compile share, as of the last state, with the trees of their recordings.
type GraphPool struct {
	Pool string `json:"pool"` // as DeviceInfo.Pools has it
	// "idle", "warm-up", "recording" or "execution"; in the last, tensors have memory that the allocator counts as free
	State      string `json:"state"`
	Generation int64  `json:"generation"` // of the path
	Segments   int    `json:"segments"`   // of the pool
	Reserved   uint64 `json:"reserved"`   // bytes of the segments
	Allocated  uint64 `json:"allocated"`  // bytes of blocks that the allocator counts as in use
	Live       uint64 `json:"live"`       // bytes of outputs that are in use
	Used       uint64 `json:"used"`       // bytes that some graph writes to, but for workspaces
	Idle       uint64 `json:"idle"`       // bytes that are neither in use nor written to
	// Nodes are the recordings, each before those after it, then the functions that ran without a graph.
	Nodes []GraphNode `json:"nodes"`
}

// GraphNode is a recording, or a function that ran without a graph first.
type GraphNode struct {
	ID         string `json:"id"`         // the recording's number, or w and the function's
	Root       string `json:"root"`       // ID of the node that its tree begins with
	Depth      int    `json:"depth"`      // below the root
	Function   int64  `json:"function"`   // number of the recorded function: the calls between two places of a region
	Name       string `json:"name"`       // function of the region or the callable, without its package's path
	Kind       string `json:"kind"`       // "inference", "forward" or "backward"
	From       string `json:"from"`       // line of the first call
	To         string `json:"to"`         // line of the last call
	Calls      int64  `json:"calls"`      // how many
	WarmUp     bool   `json:"warm_up"`    // it has no graph
	Runs       int64  `json:"runs"`       // the recording and replays, or runs without a graph
	Generation int64  `json:"generation"` // of the latest run
	Place      int64  `json:"place"`      // in the path, from 0 on; -1 if it is not in it
	Grown      uint64 `json:"grown"`      // bytes by which the pool grew for it
	Used       uint64 `json:"used"`       // bytes that it writes to, but for workspaces
	Live       uint64 `json:"live"`       // bytes of its outputs that are in use
	Count      int    `json:"count"`      // how many these are
	// Segments are the addresses of those that have what it writes to, or outputs in use.
	Segments []string `json:"segments"`
	// Outputs are what it leaves to others.
	Outputs []GraphOutput `json:"outputs"`
}

// GraphOutput is memory that a node leaves to others.
type GraphOutput struct {
	Addr string `json:"addr"` // device address
	Size uint64 `json:"size"` // bytes
	Op   string `json:"op"`   // the operation that makes it
	At   string `json:"at"`   // line of its call
	Live bool   `json:"live"` // it is in use
}

// Diff compares what two files hold, by stack: "before" is the file given first.
type Diff struct {
	At           string      `json:"at"`            // "end" or "peak"
	BeforeFile   string      `json:"before_file"`   // name of the first file
	AfterFile    string      `json:"after_file"`    // name of the second file
	BeforeDevice int         `json:"before_device"` // number; another one only where the first file lacks the second's
	AfterDevice  int         `json:"after_device"`  // number
	BeforeActive uint64      `json:"before_active"` // bytes of live allocations
	AfterActive  uint64      `json:"after_active"`  // likewise
	BeforeCached uint64      `json:"before_cached"` // bytes in segments
	AfterCached  uint64      `json:"after_cached"`  // likewise
	Groups       []DiffGroup `json:"groups"`        // greatest change first, at most 500
	Rest         DiffGroup   `json:"rest"`          // all other groups together
	OnlyBefore   []Segment   `json:"only_before"`   // segments, known by address and size; without blocks
	OnlyAfter    []Segment   `json:"only_after"`    // likewise
}

// DiffGroup is what one stack holds in both files. Stacks are equal if their frames are.
type DiffGroup struct {
	Label       string  `json:"label"`        // as Stack.Label
	Frames      []Frame `json:"frames"`       // innermost first
	BeforeBytes uint64  `json:"before_bytes"` // sum of the sizes
	AfterBytes  uint64  `json:"after_bytes"`  // likewise
	BeforeCount int     `json:"before_count"` // allocations
	AfterCount  int     `json:"after_count"`  // likewise
}
