// Package browser drives a headless Chromium over its DevTools protocol, so that tests can use a page as a person does.
// It may not know what the pages show.
//
// Commands travel over two pipes that Chromium inherits as descriptors 3 and 4 (its flag --remote-debugging-pipe): each message is
// JSON with a zero byte after it. No socket is opened and no other library is needed.
package browser

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"time"
)

// ErrNotInstalled says that no Chromium was found; tests skip with its text.
var ErrNotInstalled = errors.New("no Chromium on this machine: install Debian's package chromium, or put chromium or google-chrome into PATH")

// patience bounds every wait for the browser: a command's answer, a condition in a page, a clean exit.
const patience = 30 * time.Second

// Find returns the path of the Chromium or Chrome found in PATH, or [ErrNotInstalled].
func Find() (string, error) {
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "headless-shell"} {
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNotInstalled
}

// Browser is one running Chromium. It is safe for concurrent use.
type Browser struct {
	process *exec.Cmd
	in      *os.File
	done    chan struct{} // closed when the browser's pipe ends

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	tabs    map[string]*Tab // by session
	broken  error
}

type answer struct {
	Result json.RawMessage
	Error  *struct{ Message string }
}

// message is what either side sends.
type message struct {
	ID      int             `json:"id,omitempty"`
	Method  string          `json:"method,omitempty"`
	Session string          `json:"sessionId,omitempty"`
	Params  json.RawMessage `json:"params,omitempty"`
	Result  json.RawMessage `json:"result,omitempty"`
	Error   *struct {
		Message string `json:"message"`
	} `json:"error,omitempty"`
}

// Start starts a headless Chromium whose profile is the empty folder dir. It fails with [ErrNotInstalled] where there is none.
// Close ends it.
func Start(dir string) (*Browser, error) {
	path, err := Find()
	if err != nil {
		return nil, err
	}
	theirIn, in, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	out, theirOut, err := os.Pipe()
	if err != nil {
		theirIn.Close()
		in.Close()
		return nil, err
	}
	// The sandbox needs rights that a container's root has not; pages of tests are our own. Every flag after it keeps the browser
	// from asking the network for anything by itself.
	cmd := exec.Command(path, "--headless", "--remote-debugging-pipe", "--user-data-dir="+dir, "--no-sandbox", "--disable-gpu",
		"--disable-dev-shm-usage", "--no-first-run", "--no-default-browser-check", "--disable-quic", "--disable-sync", "--disable-extensions",
		"--disable-background-networking", "--disable-component-update", "--disable-default-apps", "--disable-domain-reliability",
		"--disable-renderer-backgrounding", "--disable-background-timer-throttling", "--disable-backgrounding-occluded-windows",
		"--disable-features=OptimizationHints,MediaRouter,Translate", "--metrics-recording-only", "--force-color-profile=srgb",
		"--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1", "--hide-scrollbars", "about:blank")
	cmd.ExtraFiles = []*os.File{theirIn, theirOut}
	err = cmd.Start()
	theirIn.Close()
	theirOut.Close()
	if err != nil {
		in.Close()
		out.Close()
		return nil, fmt.Errorf("%s does not start: %w", path, err)
	}
	b := &Browser{process: cmd, in: in, done: make(chan struct{}), waiting: map[int]chan answer{}, tabs: map[string]*Tab{}}
	go b.read(out)
	return b, nil
}

// read hands answers to those who wait and events to their tabs until the pipe ends.
func (b *Browser) read(out *os.File) {
	defer out.Close()
	defer close(b.done)
	r := bufio.NewReaderSize(out, 1<<20)
	var err error
	for {
		var line []byte
		if line, err = r.ReadBytes(0); err != nil {
			break
		}
		var m message
		if err = json.Unmarshal(bytes.TrimSuffix(line, []byte{0}), &m); err != nil {
			break
		}
		b.mu.Lock()
		if m.ID != 0 {
			if c := b.waiting[m.ID]; c != nil {
				delete(b.waiting, m.ID)
				a := answer{Result: m.Result}
				if m.Error != nil {
					a.Error = &struct{ Message string }{m.Error.Message}
				}
				c <- a
			}
		} else if t := b.tabs[m.Session]; t != nil {
			t.note(m.Method, m.Params)
		}
		b.mu.Unlock()
	}
	if errors.Is(err, io.EOF) {
		err = errors.New("the browser has ended")
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken = err
	for id, c := range b.waiting {
		delete(b.waiting, id)
		c <- answer{Error: &struct{ Message string }{err.Error()}}
	}
}

// call sends one command and decodes its answer into result, which may be nil.
func (b *Browser) call(session, method string, params, result any) error {
	raw, err := json.Marshal(params)
	if err != nil {
		return err
	}
	c := make(chan answer, 1)
	b.mu.Lock()
	if b.broken != nil {
		b.mu.Unlock()
		return fmt.Errorf("%s: %w", method, b.broken)
	}
	b.last++
	id := b.last
	b.waiting[id] = c
	line, err := json.Marshal(message{ID: id, Method: method, Session: session, Params: raw})
	if err == nil {
		_, err = b.in.Write(append(line, 0))
	}
	if err != nil {
		delete(b.waiting, id)
	}
	b.mu.Unlock()
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case a := <-c:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		if result == nil {
			return nil
		}
		return json.Unmarshal(a.Result, result)
	case <-timer.C:
		b.mu.Lock()
		delete(b.waiting, id)
		b.mu.Unlock()
		return fmt.Errorf("%s: no answer from the browser within %v", method, patience)
	}
}

// Close ends the browser and waits for it; what does not end by itself is killed.
func (b *Browser) Close() error {
	_ = b.call("", "Browser.close", struct{}{}, nil) // the answer may be cut off by the end itself
	b.in.Close()
	exited := make(chan error, 1)
	go func() { exited <- b.process.Wait() }()
	select {
	case <-exited:
	case <-time.After(patience):
		_ = b.process.Process.Kill()
		<-exited
	}
	<-b.done
	return nil
}
