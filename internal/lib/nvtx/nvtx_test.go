//go:build !tenon_sim && linux

package nvtx

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"tenon.dev/internal/dl"
	"tenon.dev/internal/knob"
)

// profiler is a profiler in Go: what it does when it is initialised, and what it received.
var profiler struct {
	initialize func(table dl.Proc) uintptr
	heard      []string
}

func hear(format string, args ...any) {
	profiler.heard = append(profiler.heard, fmt.Sprintf(format, args...))
}

// tables requests the table of a module.
func tables(export dl.Proc, module uintptr) (slots []uintptr, ok bool) {
	table, n := new(uintptr), new(uint32)
	callbacks := (*[2]uint64)(dl.Pointer(export.Call(tableCallbacks)))
	if callbacks[0] != 16 {
		return nil, false
	}
	ok = dl.Proc(callbacks[1]).Call(module, dl.Address(unsafe.Pointer(table)), dl.Address(unsafe.Pointer(n))) == 1
	if !ok {
		return nil, false
	}
	return unsafe.Slice((*uintptr)(dl.Pointer(*table)), *n+1), true
}

func put(slots []uintptr, slot int, f any) { *(*uintptr)(dl.Pointer(slots[slot])) = dl.Callback(f) }

func TestTool(t *testing.T) {
	initialize := dl.Proc(dl.Callback(func(export uintptr) uintptr { return profiler.initialize(dl.Proc(export)) }))
	profiler.initialize = func(export dl.Proc) uintptr { return 0 }
	if attach(initialize) != nil {
		t.Error("a profiler that declined listens")
	}
	depth := 0
	profiler.initialize = func(export dl.Proc) uintptr {
		if info := (*[3]uint64)(dl.Pointer(export.Call(tableVersion))); info[0] != 24 || info[1] != 3 || info[2] == 0 {
			t.Errorf("the version is %v", info)
		} else {
			dl.Proc(info[2]).Call(3)
		}
		if export.Call(2) != 0 || export.Call(99) != 0 {
			t.Error("there are tables that there are not")
		}
		for module, n := range []int{0, 16, 9, 15, 7, 16, 7, 0, 0} {
			slots, ok := tables(export, uintptr(module))
			if ok != (n > 0) || ok && (len(slots) != n+1 || slots[0] != 0 || slots[n] != 0 || slices.Contains(slots[1:n], 0)) {
				t.Errorf("module %d: %v, %v", module, slots, ok)
			}
		}
		core, _ := tables(export, moduleCore)
		put(core, slotMark, func(text uintptr) { hear("mark %s", dl.String(text)) })
		put(core, slotPush, func(text uintptr) uintptr { hear("push %s", dl.String(text)); depth++; return uintptr(depth - 1) })
		put(core, slotPop, func() uintptr { hear("pop"); depth--; return uintptr(uint32(depth)) })
		put(core, slotStart, func(text uintptr) uintptr { hear("start %s", dl.String(text)); return 1 << 40 })
		put(core, slotEnd, func(id uintptr) { hear("end %#x", id) })
		return 1
	}
	tool := attach(initialize)
	if tool == nil {
		t.Fatal("the profiler does not listen")
	}
	tool.Mark("a")
	depths := []int{tool.Push("b"), tool.Push("c\x00d"), tool.Pop(), tool.Pop(), tool.Pop()}
	tool.End(tool.Start(""))
	if got := strings.Join(profiler.heard, ", "); got != "mark a, push b, push c, pop, pop, pop, start , end 0x10000000000" {
		t.Errorf("the profiler heard %q", got)
	}
	if !slices.Equal(depths, []int{0, 1, 1, 0, -1}) {
		t.Errorf("the depths are %v", depths)
	}
	// A profiler that needs nothing.
	profiler.heard = nil
	profiler.initialize = func(dl.Proc) uintptr { return 1 }
	tool = attach(initialize)
	tool.Mark("a")
	tool.End(tool.Start("b"))
	if tool.Push("c") != NoTracking || tool.Pop() != NoTracking || tool.Start("d") != 0 || len(profiler.heard) != 0 {
		t.Errorf("a profiler without functions heard %q", profiler.heard)
	}
}

// library is a profiler's library, written against the published layout.
const library = `
#include <stddef.h>
#include <stdio.h>
#include <string.h>
static char text[1000];
static int depth;
static void add(const char *what, const char *m) { size_t n = strlen(text); snprintf(text + n, sizeof text - n, "%s %s;", what, m); }
const char *heard(void) { return text; }
static void mark(const char *m) { add("mark", m); }
static int push(const char *m) { add("push", m); return depth++; }
static int pop(void) { add("pop", ""); return --depth; }
static unsigned long long start(const char *m) { add("start", m); return 77; }
static void end(unsigned long long id) { add("end", id == 77 ? "77" : "another"); }
struct callbacks { size_t size; int (*functions)(int module, void ****table, unsigned *n); };
struct version { size_t size; unsigned version, reserved; void (*set)(unsigned); };
int InitializeInjectionNvtx2(const void *(*get)(unsigned id)) {
	const struct callbacks *c = get(1);
	const struct version *v = get(3);
	void ***t;
	unsigned n;
	if (!c || c->size < sizeof *c || !v || v->size < sizeof *v || v->version != 3) return 0;
	v->set(3);
	if (!c->functions(1, &t, &n) || n != 16) return 0;
	*t[2] = mark; *t[5] = start; *t[7] = end; *t[9] = push; *t[11] = pop;
	return 1;
}
`

// TestInjection works like a real profiler: with a library named in the environment.
func TestInjection(t *testing.T) {
	cc, err := exec.LookPath("gcc")
	if err != nil {
		t.Skip("the profiler's library that the test loads is written in C, and there is no gcc")
	}
	dir := t.TempDir()
	source, so := filepath.Join(dir, "profiler.c"), filepath.Join(dir, "profiler.so")
	if err := os.WriteFile(source, []byte(library), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-o", so, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Setenv(knob.NVTXInjection.Name(), so)
	tool := Listening()
	if tool == nil {
		t.Fatal("the profiler does not listen")
	}
	tool.Mark("a")
	depths := []int{tool.Push("b"), tool.Push("c"), tool.Pop(), tool.Pop()}
	tool.End(tool.Start("d"))
	lib, err := dl.Open(so)
	if err != nil {
		t.Fatal(err)
	}
	heard, err := lib.Symbol("heard")
	if err != nil {
		t.Fatal(err)
	}
	if got := dl.String(heard.Call()); got != "mark a;push b;push c;pop ;pop ;start d;end 77;" {
		t.Errorf("the profiler heard %q", got)
	}
	if !slices.Equal(depths, []int{0, 1, 1, 0}) {
		t.Errorf("the depths are %v", depths)
	}
}
