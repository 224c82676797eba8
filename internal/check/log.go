package check

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"

	"tenon.dev/fault"
	"tenon.dev/internal/checklog"
	"tenon.dev/internal/knob"
)

// Log writes findings: one line of JSON each, to a file that several processes may share, and text for readers. It is safe for concurrent
// use. Package checklog describes the lines.
type Log struct {
	mu      sync.Mutex
	json    io.Writer
	text    io.Writer
	looks   map[string]bool
	pid     int
	begun   bool
	seen    map[string]bool
	kernels map[string]bool
	count   int
	last    uint64
}

// Tools are what a log can look for, as named in TENON_CHECK_TOOLS; leaks are only looked for if named.
var Tools = []string{"memcheck", "racecheck", "initcheck", "synccheck", "leaks"}

// NewLog returns a log that writes lines of JSON and text for readers; either may be nil. looks names tools from [Tools]; any other name is
// an error.
func NewLog(json, text io.Writer, looks ...string) (*Log, error) {
	l := &Log{json: json, text: text, looks: map[string]bool{}, pid: os.Getpid(), seen: map[string]bool{}, kernels: map[string]bool{}}
	for _, t := range looks {
		if !slices.Contains(Tools, t) {
			return nil, fault.New(fault.Invalid, "%s names the tool %q; there are %s", knob.MemoryCheckTools.Name(), t,
				strings.Join(Tools, ", "))
		}
		l.looks[t] = true
	}
	return l, nil
}

var process struct {
	once sync.Once
	log  *Log
	err  error
}

// Open returns the process's log if the environment asks for one, otherwise nil. It fails if the environment's settings are invalid.
func Open() (*Log, error) {
	process.once.Do(func() { process.log, process.err = open() })
	return process.log, process.err
}

func open() (*Log, error) {
	name := knob.MemoryCheck.Get()
	if name == "" {
		return nil, nil
	}
	looks := slices.DeleteFunc(strings.FieldsFunc(knob.MemoryCheckTools.Get(), func(r rune) bool { return r == ',' || r == ' ' }),
		func(name string) bool { return name == "cached" }) // handled by the allocators
	if name == "-" {
		return NewLog(nil, os.Stderr, looks...)
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fault.New(fault.Invalid, "%s names a file that cannot be written: %v", knob.MemoryCheck.Name(), err)
	}
	l, err := NewLog(f, os.Stderr, looks...)
	if err == nil {
		l.begin() // a log with only a first line shows that the checker was on
	}
	return l, err
}

// write appends a line; mu is held. Each line is a single write, so that the lines of several processes do not mix.
func (l *Log) write(e checklog.Line) {
	if l.json == nil {
		return
	}
	l.begin()
	e.PID = l.pid
	if _, err := l.json.Write(e.Encode()); err != nil && l.text != nil {
		fmt.Fprintf(l.text, "========= a finding could not be written: %v\n", err)
	}
}

// begin writes the first line, once.
func (l *Log) begin() {
	if !l.begun {
		l.begun = true
		l.write(checklog.Line{Checker: checklog.Name, Tools: l.tools()})
	}
}

// tools returns the names of the tools whose findings are wanted.
func (l *Log) tools() (names []string) {
	for _, t := range Tools {
		if l.looks[t] {
			names = append(names, t)
		}
	}
	return names
}

// look reports whether findings of a class are wanted.
func (l *Log) look(class string) bool { return l.looks[tools[class]] }

// add writes a finding, unless it was already written or is not looked for.
func (l *Log) add(f *checklog.Finding) {
	if !l.look(f.Class) {
		return
	}
	f.Tool, f.Severity, f.Count = tools[f.Class], "error", 1
	if f.Tool == "leaks" {
		f.Tool = "memcheck"
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	key := keyOf(f)
	if l.seen[key] {
		return
	}
	l.seen[key] = true
	l.count++
	l.write(checklog.Line{Finding: f})
	if l.text != nil {
		io.WriteString(l.text, textOf(f))
	}
}

// known reports whether a finding with the key was added; this is cheaper than making the finding.
func (l *Log) known(key string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.seen[key]
}

// launched records a kernel.
func (l *Log) launched(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.kernels[name] {
		l.kernels[name] = true
		l.write(checklog.Line{Kernel: name})
	}
}

// Counts returns the number of distinct findings and of kernels watched.
func (l *Log) Counts() (findings, kernels int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count, len(l.kernels)
}

// born and died record the life of an allocation; born returns its id.
func (l *Log) born(addr, size uint64, pcs []uintptr) uint64 {
	if !l.looks["leaks"] {
		return 0
	}
	stack := frames(pcs)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	l.write(checklog.Line{Alloc: &checklog.Lifetime{ID: l.last, Address: hex(addr), Size: size, Stack: stack}})
	return l.last
}

func (l *Log) died(id uint64) {
	if id == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.write(checklog.Line{Free: id})
}

func hex(addr uint64) string { return fmt.Sprintf("0x%x", addr) }
