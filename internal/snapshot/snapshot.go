// Package snapshot is a memory snapshot as data: PyTorch's layout, read from and written as pickle.
// It must not depend on allocators or devices.
package snapshot

// Snapshot is what a process's device allocators held at one moment, and how it came about.
type Snapshot struct {
	// Segments are the pieces of memory held from the driver, as the file orders them (PyTorch sorts them by address).
	Segments []Segment
	// Traces has the history of each device, oldest first, indexed by device. Read leaves the lists empty where
	// ReadOptions.Events takes the events, but there is still one for each device.
	Traces [][]Event
	// Stacks holds every stack that a StackID of the snapshot names.
	Stacks *Stacks
	// Notes are what Event.Note indexes; the first is empty.
	Notes []Note
	// Settings are the allocator's settings under PyTorch's names, such as "max_split_size". Values are bool, int64, float64, string and
	// map[string]any of these.
	Settings map[string]any
	// Annotations are marks on the time line, such as the steps of an optimizer; nil if the file has none.
	Annotations []Annotation
	// Trees are the graphs of package compile, a tree or several for each private pool that they share. PyTorch's files have none, and its
	// readers pass over them.
	Trees []Tree
}

// Segment is memory that the allocator got from the driver in one piece; an expandable segment gives one for each run of mapped pages.
// Sizes are bytes.
type Segment struct {
	Device     int
	Addr       uint64
	TotalSize  uint64
	Allocated  uint64 // of blocks that are allocated
	Active     uint64 // of blocks that are allocated or pending free
	Requested  uint64 // what was asked for of the active blocks
	Stream     uint64 // handle; 0 is the default stream
	Type       string // "small" or "large"
	Pool       [2]uint64
	Expandable bool
	Stack      StackID // of the allocation that made it
	Blocks     []Block // by address; together they fill the segment
}

// Block is a part of a segment.
type Block struct {
	Addr      uint64
	Size      uint64 // bytes
	Requested uint64 // bytes that its last owner asked for
	State     BlockState
	Stack     StackID // of its allocation; 0 if inactive or not recorded
}

// Event is one entry of a device's history.
type Event struct {
	Addr     uint64 // device address; for ActionOOM the device's free bytes
	Size     uint64 // bytes: for ActionAlloc what was requested, for ActionSnapshot what was active
	Stream   uint64 // handle; 0 is the default stream
	TimeUS   int64  // microseconds since 1970
	Stack    StackID
	Note     uint16 // index into Snapshot.Notes
	Action   Action
	Category Category
}

// Note is what PyTorch stores with an event besides its stack.
type Note struct {
	CompileContext string // what torch.compile was running, or "N/A"
	UserMetadata   string // what the program set
}

// Annotation is a mark on the time line.
type Annotation struct {
	Stage  string // "START" or "END"
	Name   string // such as "Optimizer.step#Adam.step"
	Device int
	TimeUS int64 // microseconds since 1970
}

// StackID names a stack in Stacks; 0 is no stack.
type StackID uint32

// FrameID names a frame in Stacks.
type FrameID uint32

// Frame is one call of a stack.
type Frame struct {
	File string
	Line int
	Name string // function or operation
}

// Action is what an Event records. Its text forms are PyTorch's.
type Action uint8

// The actions of a history, in the order of tenon.dev/internal/alloc.
const (
	ActionAlloc         Action = iota // a block was handed out
	ActionFreeRequested               // the owner freed it
	ActionFreeCompleted               // no stream uses it any more: it is in the free list
	ActionSegmentAlloc                // the driver gave a segment
	ActionSegmentFree                 // it went back
	ActionSegmentMap                  // pages of an expandable segment were mapped
	ActionSegmentUnmap                // and unmapped
	ActionSnapshot                    // a snapshot was taken
	ActionOOM                         // an allocation failed
	ActionUserDefined                 // the program marked the place
)

var actionNames = [...]string{"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "segment_map",
	"segment_unmap", "snapshot", "oom", "user_defined"}

// String returns PyTorch's name of the action, such as "segment_alloc".
func (a Action) String() string {
	if int(a) < len(actionNames) {
		return actionNames[a]
	}
	return "unknown"
}

// BlockState says what a block is doing. Its text forms are PyTorch's.
type BlockState uint8

// The states of blocks.
const (
	Inactive          BlockState = iota // in the free list
	ActiveAllocated                     // owned by someone
	ActivePendingFree                   // freed, and waiting for other streams
)

var stateNames = [...]string{"inactive", "active_allocated", "active_pending_free"}

// String returns PyTorch's name of the state, such as "active_allocated".
func (s BlockState) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return "unknown"
}

// Category is what a profiler took the memory of an allocation for. Its text forms are PyTorch's.
type Category uint8

// The categories; files of the allocator itself have none.
const (
	CategoryNone Category = iota
	CategoryParameter
	CategoryGradient
	CategoryActivation
	CategoryTemporary
	CategoryInput
	CategoryOptimizerState
	CategoryAutogradDetail
	CategoryUnknown
)

var categoryNames = [...]string{"", "parameter", "gradient", "activation", "temporary", "input", "optimizer_state",
	"autograd_detail", "unknown"}

// String returns PyTorch's name of the category, such as "optimizer_state"; "" for none.
func (c Category) String() string {
	if int(c) < len(categoryNames) {
		return categoryNames[c]
	}
	return "unknown"
}
