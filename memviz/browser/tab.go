package browser

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"image"
	"image/png"
	"strings"
	"sync"
	"time"
)

// Tab is one open page. Its methods return an error when the browser refuses or does not answer in time.
type Tab struct {
	b       *Browser
	target  string
	session string

	mu       sync.Mutex
	closed   bool
	loaded   chan struct{} // closed by the next load event, where one is waited for
	errors   []string
	requests []string
}

// Open opens url in a new tab whose viewport has the given size in CSS pixels at one device pixel each, and returns once the page's
// load event has passed. Each tab has a window of its own, since one behind another would draw nothing and have slow timers.
func (b *Browser) Open(url string, width, height int) (*Tab, error) {
	var target struct{ TargetID string }
	if err := b.call("", "Target.createTarget", args{"url": "about:blank", "newWindow": true}, &target); err != nil {
		return nil, err
	}
	var attached struct{ SessionID string }
	if err := b.call("", "Target.attachToTarget", args{"targetId": target.TargetID, "flatten": true}, &attached); err != nil {
		return nil, err
	}
	t := &Tab{b: b, target: target.TargetID, session: attached.SessionID}
	b.mu.Lock()
	b.tabs[t.session] = t
	b.mu.Unlock()
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		if err := t.call(domain+".enable", args{}, nil); err != nil {
			return nil, err
		}
	}
	if err := t.call("Emulation.setFocusEmulationEnabled", args{"enabled": true}, nil); err != nil {
		return nil, err
	}
	if err := t.Resize(width, height); err != nil {
		return nil, err
	}
	return t, t.Go(url)
}

type args map[string]any

func (t *Tab) call(method string, params args, result any) error {
	t.mu.Lock()
	closed := t.closed
	t.mu.Unlock()
	if closed { // the browser leaves commands to a tab that is going unanswered
		return fmt.Errorf("%s: the tab is closed", method)
	}
	return t.b.call(t.session, method, params, result)
}

// note keeps what a test asks for later: errors of the page and addresses that it requested. It runs on the reading goroutine.
func (t *Tab) note(method string, params json.RawMessage) {
	var p struct {
		Type    string
		Request struct{ URL string }
		Args    []struct {
			Value       any
			Description string
		}
		ExceptionDetails struct {
			Text      string
			Exception struct{ Description string }
		}
		Entry struct{ Level, Text, URL string }
	}
	if json.Unmarshal(params, &p) != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch method {
	case "Page.loadEventFired":
		if t.loaded != nil {
			close(t.loaded)
			t.loaded = nil
		}
	case "Network.requestWillBeSent":
		t.requests = append(t.requests, p.Request.URL)
	case "Runtime.exceptionThrown":
		t.errors = append(t.errors, p.ExceptionDetails.Text+" "+p.ExceptionDetails.Exception.Description)
	case "Log.entryAdded":
		if p.Entry.Level == "error" || p.Entry.Level == "warning" {
			t.errors = append(t.errors, strings.TrimSpace(p.Entry.Text+" "+p.Entry.URL))
		}
	case "Runtime.consoleAPICalled":
		if p.Type == "error" || p.Type == "warning" || p.Type == "assert" {
			var words []string
			for _, a := range p.Args {
				if a.Value != nil {
					words = append(words, fmt.Sprint(a.Value))
				} else {
					words = append(words, a.Description)
				}
			}
			t.errors = append(t.errors, strings.Join(words, " "))
		}
	}
}

// Errors returns what the page has complained about so far, oldest first: uncaught exceptions, console errors and warnings, failed
// requests, violations of its content security policy.
func (t *Tab) Errors() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.errors...)
}

// Requests returns every address that the page has asked for so far, oldest first.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.requests...)
}

// Go leads the tab to url and returns once the page's load event has passed.
func (t *Tab) Go(url string) error {
	var r struct{ ErrorText string }
	if err := t.call("Page.navigate", args{"url": url}, &r); err != nil {
		return err
	}
	if r.ErrorText != "" {
		return fmt.Errorf("%s: %s", url, r.ErrorText)
	}
	return t.Wait("document.readyState === 'complete'")
}

// Reload loads the page again and returns once its load event has passed. An expression that reloads would race with its own answer.
func (t *Tab) Reload() error {
	loaded := make(chan struct{})
	t.mu.Lock()
	t.loaded = loaded
	t.mu.Unlock()
	if err := t.call("Page.reload", args{}, nil); err != nil {
		return err
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-loaded:
		return nil
	case <-t.b.done:
		return errors.New("the page did not load again: the browser has ended")
	case <-timer.C:
		return fmt.Errorf("the page did not load again within %v", patience)
	}
}

// Resize sets the viewport's size in CSS pixels, at one device pixel each.
func (t *Tab) Resize(width, height int) error {
	return t.Scale(width, height, 1)
}

// Scale sets the viewport's size in CSS pixels and the number of device pixels for each.
func (t *Tab) Scale(width, height int, factor float64) error {
	return t.call("Emulation.setDeviceMetricsOverride", args{"width": width, "height": height, "deviceScaleFactor": factor, "mobile": false}, nil)
}

// Prefer makes media queries answer as a system with the given preference: ("prefers-color-scheme", "dark") for example.
func (t *Tab) Prefer(feature, value string) error {
	return t.call("Emulation.setEmulatedMedia", args{"features": []args{{"name": feature, "value": value}}}, nil)
}

// Eval runs a JavaScript expression in the page, waits if its value is a promise, and decodes the value into result, which may be nil.
func (t *Tab) Eval(expression string, result any) error {
	var r struct {
		Result struct {
			Value       json.RawMessage
			Description string
		}
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	if err := t.call("Runtime.evaluate", args{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r); err != nil {
		return err
	}
	if e := r.ExceptionDetails; e != nil {
		return fmt.Errorf("%s: %s %s", expression, e.Text, e.Exception.Description)
	}
	if result == nil {
		return nil
	}
	if r.Result.Value == nil {
		return fmt.Errorf("%s has no value that could be read", expression)
	}
	return json.Unmarshal(r.Result.Value, result)
}

// Wait returns once the JavaScript expression is true, looking before each frame that the page draws.
func (t *Tab) Wait(expression string) error {
	var ok bool
	err := t.Eval(fmt.Sprintf(`new Promise(done => {
		const end = performance.now() + %d;
		const look = () => { let v = false; try { v = Boolean(%s); } catch {} if (v || performance.now() > end) done(v); else setTimeout(look, 8); };
		look(); })`, (patience-patience/4).Milliseconds(), expression), &ok)
	if err == nil && !ok {
		err = fmt.Errorf("never became true: %s", expression)
	}
	return err
}

// Mouse sends a mouse event at x, y (CSS pixels of the viewport): kind is mouseMoved, mousePressed or mouseReleased; the left button
// is down during a press, a release, and a move with held true.
func (t *Tab) Mouse(kind string, x, y float64, held bool) error {
	a := args{"type": kind, "x": x, "y": y, "button": "none"}
	if kind != "mouseMoved" || held {
		a["button"], a["buttons"] = "left", 1
	}
	if kind != "mouseMoved" {
		a["clickCount"] = 1
	}
	return t.call("Input.dispatchMouseEvent", a, nil)
}

// Click moves to x, y, presses and releases.
func (t *Tab) Click(x, y float64) error {
	for _, kind := range []string{"mouseMoved", "mousePressed", "mouseReleased"} {
		if err := t.Mouse(kind, x, y, false); err != nil {
			return err
		}
	}
	return nil
}

// Drag presses at the first point, moves to the second in a few steps, and releases.
func (t *Tab) Drag(x0, y0, x1, y1 float64) error {
	if err := t.Mouse("mouseMoved", x0, y0, false); err != nil {
		return err
	}
	if err := t.Mouse("mousePressed", x0, y0, false); err != nil {
		return err
	}
	for i := 1.0; i <= 4; i++ {
		if err := t.Mouse("mouseMoved", x0+(x1-x0)*i/4, y0+(y1-y0)*i/4, true); err != nil {
			return err
		}
	}
	return t.Mouse("mouseReleased", x1, y1, false)
}

// Wheel turns the wheel at x, y by dx, dy CSS pixels; modifiers is the sum of 1 Alt, 2 Control, 4 Meta, 8 Shift.
func (t *Tab) Wheel(x, y, dx, dy float64, modifiers int) error {
	return t.call("Input.dispatchMouseEvent", args{"type": "mouseWheel", "x": x, "y": y, "deltaX": dx, "deltaY": dy, "modifiers": modifiers}, nil)
}

// codes are the virtual key codes of the named keys; characters carry their own.
var codes = map[string]int{"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40,
	"Home": 36, "End": 35, "PageUp": 33, "PageDown": 34, "Backspace": 8}

// Press presses and releases one key, named as in KeyboardEvent.key ("a", "?", "ArrowLeft"); modifiers is as for Wheel.
func (t *Tab) Press(key string, modifiers int) error {
	a := args{"type": "keyDown", "key": key, "modifiers": modifiers}
	if code, named := codes[key]; named {
		a["windowsVirtualKeyCode"], a["code"] = code, key
		if key == "Enter" {
			a["text"] = "\r"
		}
	} else {
		a["text"] = key
	}
	if err := t.call("Input.dispatchKeyEvent", a, nil); err != nil {
		return err
	}
	return t.call("Input.dispatchKeyEvent", args{"type": "keyUp", "key": key, "modifiers": modifiers}, nil)
}

// Type writes text into what has the focus.
func (t *Tab) Type(text string) error {
	return t.call("Input.insertText", args{"text": text}, nil)
}

// PNG returns a picture of the viewport as PNG.
func (t *Tab) PNG() ([]byte, error) {
	var r struct{ Data string }
	if err := t.call("Page.captureScreenshot", args{"format": "png"}, &r); err != nil {
		return nil, err
	}
	return base64.StdEncoding.DecodeString(r.Data)
}

// Picture returns a picture of the viewport.
func (t *Tab) Picture() (image.Image, error) {
	raw, err := t.PNG()
	if err != nil {
		return nil, err
	}
	return png.Decode(bytes.NewReader(raw))
}

// Close closes the tab.
func (t *Tab) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.b.mu.Lock()
	delete(t.b.tabs, t.session)
	t.b.mu.Unlock()
	return t.b.call("", "Target.closeTarget", args{"targetId": t.target}, nil)
}
