package cli

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
	"time"
)

// recordedSnapshot is the path of a snapshot that PyTorch wrote.
func recordedSnapshot(name string) string {
	return filepath.Join("..", "snapshot", "testdata", name+".pickle.gz")
}

func TestMemvizReports(t *testing.T) {
	dir := t.TempDir()
	gpt, res, small := recordedSnapshot("gpt2_amp_graph"), recordedSnapshot("resnet50"), recordedSnapshot("extra_streams")
	for _, c := range []struct {
		args []string
		file string // "" is standard output
		want string
	}{
		{[]string{"stats", gpt}, "", "total_reserved: 822.0MiB\n"},
		{[]string{"trace", gpt}, "", "raise OutOfMemoryError # 1.0PiB requested"},
		{[]string{"segments", gpt, "-o", "-"}, "", "stream_0;seg_"},
		{[]string{"memory", gpt, "-o", "-"}, "", "stream_0;active_allocated;"},
		{[]string{"compare", res, gpt, "-o", "-"}, "", "only_after;stream_0;"},
		{[]string{"flamegraph", gpt, "-o", "-", "--at", "end"}, "", "rec.py:93:<module>;grad_scaler.py:478:step"},
		{[]string{"segments", gpt, "-o", "s.svg"}, "s.svg", "<svg "},
		{[]string{"memory", gpt, "-o", "m.txt"}, "m.txt", "stream_0;active_allocated;"},
		{[]string{"compare", res, gpt, "-o", "c.svg"}, "c.svg", "only_before"},
		{[]string{"flamegraph", gpt, "-o", "f.svg", "--device", "0"}, "f.svg", "Who held memory of device 0 at the peak"},
		{[]string{"trace_plot", small, "-o", "t.html"}, "t.html", `"first":"active"`},
		{[]string{"trace_plot", small, "-s", "-o", "ts.html"}, "ts.html", `"first":"cached"`},
		{[]string{"segment_plot", small, "-o", "sp.html"}, "sp.html", `"first":"state"`},
		{[]string{"pprof", small, "-o", "-"}, "", "\x1f\x8b"},
		{[]string{"perfetto", small, "-o", "p.json"}, "p.json", `"name":"segment_alloc"`},
		{[]string{small, "--static", "a.html"}, "a.html", `id="tenon-static"`},
		{[]string{"show", small, small, "--static", "d.html"}, "d.html", `diff?device=0`},
	} {
		args := append([]string{"memviz"}, c.args...)
		for i := range args {
			if args[i] == c.file {
				args[i] = filepath.Join(dir, c.file)
			}
		}
		out, errs, exit := run(args...)
		if exit != 0 || errs != "" {
			t.Errorf("%v: exit status %d: %s", args, exit, errs)
			continue
		}
		if c.file != "" {
			b, err := os.ReadFile(filepath.Join(dir, c.file))
			if err != nil {
				t.Error(err)
			}
			out = string(b)
		}
		if !strings.Contains(out, c.want) {
			t.Errorf("%v: no %q in %.300s", args, c.want, out)
		}
		if (c.args[0] == "stats" || c.args[0] == "trace") && !strings.HasSuffix(out, "\n") {
			t.Errorf("%v: the last line does not end: %q", args, out[len(out)-20:])
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, ".*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestMemvizErrors(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "bad.pickle")
	if err := os.WriteFile(bad, []byte("no pickle"), 0o600); err != nil {
		t.Fatal(err)
	}
	// A snapshot without devices.
	none := filepath.Join(dir, "none.pickle")
	if err := os.WriteFile(none, []byte("\x80\x04}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces]u."), 0o600); err != nil {
		t.Fatal(err)
	}
	good := recordedSnapshot("extra_streams")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"absent"}, "cannot open the snapshot"},
		{[]string{bad}, "bad.pickle: the snapshot cannot be read"},
		{[]string{good, bad}, "bad.pickle: the snapshot cannot be read"},
		{[]string{bad, good}, "bad.pickle: the snapshot cannot be read"},
		{[]string{"stats", "absent"}, "cannot open the snapshot"},
		{[]string{"stats", bad}, "bad.pickle: the snapshot cannot be read"},
		{[]string{"compare", "absent", good}, "cannot open the snapshot"},
		{[]string{"compare", good, "absent"}, "cannot open the snapshot"},
		{[]string{"segments", bad, "-o", filepath.Join(dir, "x.svg")}, "tenon: reading " + bad + ": the snapshot cannot be read"},
		{[]string{"pprof", bad, "-o", filepath.Join(dir, "x.pb.gz")}, "bad.pickle: the snapshot cannot be read"},
		{[]string{"flamegraph", none, "-o", filepath.Join(dir, "x.svg")}, "none.pickle holds nothing of any device"},
		{[]string{"segments", good, "-o", filepath.Join(dir, "no", "x.svg")}, "cannot write"},
		{[]string{"flamegraph", bad}, "bad.pickle: the snapshot cannot be read"},
		{[]string{"flamegraph", good, "--device", "7", "-o", "-"}, "has no device 7"},
		{[]string{"trace_plot", bad}, "bad.pickle: the snapshot cannot be read"},
		{[]string{"trees", bad}, "bad.pickle: the snapshot cannot be read"},
	} {
		_, errs, exit := run(append([]string{"memviz"}, c.args...)...)
		if exit != 1 || !strings.Contains(errs, c.want) || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: exit status %d, %q; want %q", c.args, exit, errs, c.want)
		}
	}
	if out, errs, exit := run("memviz", "trace", none); exit != 0 || out != "\n" || !strings.Contains(errs, "none.pickle holds no trace") {
		t.Errorf("the trace of no history: exit status %d, %q, %q", exit, out, errs)
	}
	if out, errs, exit := run("memviz", "trees", none); exit != 0 || !strings.Contains(out, "none.pickle has no graph trees") ||
		errs != "" {
		t.Errorf("the trees of no region: exit status %d, %q, %q", exit, out, errs)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*.svg")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// The viewer serves until it is interrupted, and ends with status 0.
func TestMemvizServe(t *testing.T) {
	r, w := io.Pipe()
	exit := make(chan int, 1)
	go func() {
		var errs bytes.Buffer
		exit <- Main([]string{"memviz", recordedSnapshot("extra_streams"), "--no-open"}, w, &errs)
		w.CloseWithError(io.EOF)
	}()
	buf := make([]byte, 4096)
	n, err := r.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	go io.Copy(io.Discard, r)
	url := regexp.MustCompile(`http://127\.0\.0\.1:\d+/[0-9a-f]{32}/`).FindString(string(buf[:n]))
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	res, err := client.Get(url + "info")
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(res.Body)
	res.Body.Close()
	if err != nil || !strings.Contains(string(b), `"extra_streams.pickle.gz"`) {
		t.Errorf("%v %.200s", err, b)
	}
	self, err := os.FindProcess(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if err := self.Signal(os.Interrupt); err != nil {
		t.Skip("a process cannot interrupt itself here: ", err)
	}
	if got := <-exit; got != 0 {
		t.Errorf("exit status %d", got)
	}
}

func TestImportBar(t *testing.T) {
	var out strings.Builder
	b := importBar{out: &out, name: "x.pickle", began: time.Now()}
	b.advance(1, 10)
	b.clear()
	if out.Len() != 0 {
		t.Errorf("a bar for what takes a moment: %q", out.String())
	}
	b.began = b.began.Add(-2 * time.Second)
	b.advance(50e6, 100e6)
	b.advance(51e6, 100e6) // too soon
	if want := "\rreading x.pickle [███████████████···············] 50 %, 25 MB/s "; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	out.Reset()
	b.last = time.Time{}
	b.advance(50e6, 0)
	b.clear()
	if want := "\rreading x.pickle: 50 MB, 25 MB/s \r\x1b[K"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// The browser's command line does not contain the address, which is in a file that only this user can read.
func TestOpenBrowser(t *testing.T) {
	const url = "http://127.0.0.1:1234/0123456789abcdef/"
	var target string
	forget, err := openBrowser(url, func(name string) error {
		target = name
		text, err := os.ReadFile(name)
		if err != nil || !strings.Contains(string(text), `content="0; url=`+url+`"`) {
			t.Errorf("the file says %s, %v", text, err)
		}
		for _, name := range []string{name, filepath.Dir(name)} {
			if info, err := os.Stat(name); err != nil || runtime.GOOS != "windows" && info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: %v, %v", name, info.Mode(), err)
			}
		}
		return errors.New("no browser")
	})
	if err == nil || err.Error() != "no browser" || strings.Contains(target, "0123456789abcdef") {
		t.Errorf("started with %s: %v", target, err)
	}
	forget()
	if _, err := os.Stat(filepath.Dir(target)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is still there: %v", err)
	}
}
