package memcheck

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// printing returns an output for at most maximum bytes, and counts how often the limit is exceeded.
func printing(t *testing.T, name string, maximum int64) (o *output, over *int) {
	t.Helper()
	over = new(int)
	o, err := openOutput(name, newRoom(maximum, func() { *over++ }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := o.close(); err != nil {
			t.Error(err)
		}
	})
	return o, over
}

// All output is kept: read before the process ends, while it runs, and what is left at the end; in memory and in a file, whose name is
// removed.
func TestOutputKeeps(t *testing.T) {
	for _, size := range []int{0, 1, tailBytes, tailBytes + 1, memoryBytes, memoryBytes + 1, 3*memoryBytes + 5} {
		for _, when := range []string{"while", "both", "before"} {
			if when == "before" && size > memoryBytes { // more than a pipe holds
				continue
			}
			t.Run(fmt.Sprintf("%d %s", size, when), func(t *testing.T) {
				name := filepath.Join(t.TempDir(), "out")
				o, over := printing(t, name, 0)
				text := bytes.Repeat([]byte("0123456789abcde\n"), size/16+1)[:size]
				first := len(text)
				switch when {
				case "while":
					first = 0
				case "both":
					first = min(first/2, memoryBytes/2)
				}
				write := func(b []byte) {
					if _, err := o.write.Write(b); err != nil {
						t.Fatal(err)
					}
				}
				write(text[:first])
				if when != "before" {
					o.start()
				}
				write(text[first:])
				o.started()
				if err := o.finish(); err != nil || *over != 0 {
					t.Fatalf("%v, over %d times", err, *over)
				}
				got, err := io.ReadAll(o.whole())
				if err != nil || !bytes.Equal(got, text) || o.printed != int64(size) {
					t.Errorf("%d of %d bytes are kept, %v", len(got), size, err)
				}
				if last, err := o.tail(); err != nil || last != tail(string(text), tailBytes) {
					t.Errorf("the tail has %d bytes, %v", len(last), err)
				}
				if (o.file != nil) != (size > memoryBytes) {
					t.Errorf("file %v", o.file)
				}
				if left, _ := filepath.Glob(name); len(left) > 0 && o.file == nil {
					t.Errorf("left %v", left)
				}
			})
		}
	}
}

// The end of a process is the end of its output, even if another process could still write.
func TestOutputHeldOpen(t *testing.T) {
	for _, read := range []bool{false, true} {
		o, _ := printing(t, "none", 0)
		if _, err := o.write.WriteString("text"); err != nil {
			t.Fatal(err)
		}
		if read {
			o.start()
		}
		if err := o.finish(); err != nil { // the other end is still open
			t.Error(err)
		}
		if got, err := io.ReadAll(o.whole()); err != nil || string(got) != "text" {
			t.Errorf("%q, %v", got, err)
		}
		if _, err := o.write.WriteString("more"); err == nil {
			t.Error("somebody still reads")
		}
		o.started()
	}
}

// Both streams share the room; output beyond it is counted and dropped.
func TestOutputRoom(t *testing.T) {
	over := 0
	r := newRoom(10, func() { over++ })
	a, b := &output{room: r}, &output{room: r}
	a.keep([]byte("1234567"))
	b.keep([]byte("890"))
	if over != 0 {
		t.Error("ten bytes are too many")
	}
	a.keep([]byte("x"))
	b.keep([]byte("yz"))
	if string(a.memory) != "1234567" || string(b.memory) != "890" || a.printed+b.printed != 13 || over != 2 {
		t.Errorf("%q %q, %d printed, over %d times", a.memory, b.memory, a.printed+b.printed, over)
	}
	r = newRoom(3, func() {})
	c := &output{room: r}
	if c.keep([]byte("abcdef")); string(c.memory) != "abc" || c.size != 3 || c.printed != 6 {
		t.Errorf("%q, %d, %d", c.memory, c.size, c.printed)
	}
}

// Output that cannot be kept ends the process, and the error says so.
func TestOutputCannotBeKept(t *testing.T) {
	large := make([]byte, memoryBytes+1)
	o, over := printing(t, filepath.Join(t.TempDir(), "absent", "out"), 0)
	o.keep(large)
	o.keep(large) // tried once
	o.started()
	if err := o.finish(); err == nil || !strings.Contains(err.Error(), "cannot make a file for the output of a test") || *over != 1 {
		t.Errorf("%v, over %d times", err, *over)
	}
	for _, early := range []bool{true, false} {
		name := filepath.Join(t.TempDir(), "out")
		if err := os.WriteFile(name, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(name) // not writable
		if err != nil {
			t.Fatal(err)
		}
		o := &output{room: newRoom(0, func() {}), file: f}
		if early {
			o.memory = []byte("x")
		}
		o.keep(large)
		if o.err == nil || !strings.Contains(o.err.Error(), "cannot keep the output of a test") {
			t.Error(o.err)
		}
		if err := o.close(); err != nil {
			t.Error(err)
		}
		o.size = 1
		if _, err := o.tail(); err == nil {
			t.Error("a closed file was read")
		}
	}
	f := newFake(t)
	f.test("a", "head -c 1000000 /dev/zero")
	r, records := f.run()
	r.Observers[0].(*keeper).began = func(Job) {
		if err := os.Mkdir(filepath.Join(r.scratch, "0.out"), 0o700); err != nil { // at the path of the file
			t.Error(err)
		}
	}
	if s, err := r.Do(t.Context()); err == nil || !strings.Contains(err.Error(), "cannot make a file for the output of a test") ||
		s.Ran() != 0 || len(*records) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

// A process that prints more than allowed and ends before its output is read still fails.
func TestTooMuchAtOnce(t *testing.T) {
	r := alone(t, say(cleanReport, "0"), func(r *Run) { r.MaxPrinted = 10 })
	if r.Outcome != Fail || r.Reason != "printed more than the limit of 10 bytes" || r.Stdout != cleanReport[:10] ||
		r.Printed != int64(len(cleanReport)) {
		t.Errorf("%+v", r)
	}
}

// A process that cannot be killed is left behind, and the run continues without it.
func TestStuck(t *testing.T) {
	wait := killWait
	killWait, endGroup = 50*time.Millisecond, func(int) {}
	defer func() { killWait, endGroup = wait, killGroup }()
	f := newFake(t)
	f.test("a", "echo before; sleep 1000")
	f.test("b", say(cleanReport, "0"))
	r, records := f.run()
	r.Limit = 300 * time.Millisecond
	s, err := r.Do(t.Context())
	if err != nil || s.Timeouts != 1 || s.Succeeded != 1 {
		t.Fatalf("%+v, %v", s, err)
	}
	if a := (*records)[0]; a.Reason != "still running after 300ms; it did not end when it was killed, and was left behind" ||
		a.Exit != -1 || a.Stdout != "before\n" || a.Seconds < 0.3 {
		t.Errorf("%+v", a)
	}
}
