package browser

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"image"
	"image/png"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/input"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// Tab is one open page of a test. A method that the browser refuses, or does not answer within 30 seconds, ends the test.
type Tab struct {
	t   testing.TB
	ctx context.Context

	mu       sync.Mutex
	errors   []string
	requests []string
}

// Open opens url in a new tab whose viewport has the given size in CSS pixels at one device pixel each, and returns after the page's
// load event. The tab closes with the test t.
func (b *Browser) Open(t testing.TB, url string, width, height int) *Tab {
	t.Helper()
	ctx, end := chromedp.NewContext(b.ctx) // in a separate window: a tab behind another would draw nothing
	t.Cleanup(end)
	tab := &Tab{t: t, ctx: ctx}
	if err := chromedp.Listen(ctx, tab.note); err != nil {
		t.Fatalf("no tab opens: %v", err)
	}
	tab.do("taking the focus", call(emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}))
	tab.Resize(width, height)
	tab.Go(url)
	return tab
}

// call is one protocol command with an empty answer.
func call[P, R any](command cdp.Command[P, R], params P) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, command, params)
		return err
	})
}

// do runs actions; what names them in the error if one fails.
func (t *Tab) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	if err := chromedp.Do(ctx, actions...); err != nil {
		t.t.Fatalf("%s: %v", what, err)
	}
}

// get runs an action and returns its result.
func get[T any](t *Tab, what string, action chromedp.Action[T]) T {
	t.t.Helper()
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	result, err := chromedp.Run(ctx, action)
	if err != nil {
		t.t.Fatalf("%s: %v", what, err)
	}
	return result
}

// note records events that a test asks for later. The goroutine that reads the browser's messages calls it before it reads the next
// message, so an event that comes before an answer is recorded before the answer is returned.
func (t *Tab) note(event any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e := event.(type) {
	case *network.EventRequestWillBeSent:
		t.requests = append(t.requests, e.Request.URL)
	case *runtime.EventExceptionThrown:
		t.errors = append(t.errors, (&chromedp.ExceptionError{ExceptionDetails: e.ExceptionDetails}).Error())
	case *log.EventEntryAdded:
		if e.Entry.Level == log.EntryLevelError || e.Entry.Level == log.EntryLevelWarning {
			t.errors = append(t.errors, strings.TrimSpace(e.Entry.Text+" "+e.Entry.URL))
		}
	case *runtime.EventConsoleAPICalled:
		switch e.Type {
		case runtime.ConsoleAPICalledTypeError, runtime.ConsoleAPICalledTypeWarning, runtime.ConsoleAPICalledTypeAssert:
			var words []string
			for _, a := range e.Args {
				var value any = a.Description
				if a.Value != nil {
					_ = json.Unmarshal(a.Value, &value) // the browser's own JSON
				}
				words = append(words, fmt.Sprint(value))
			}
			t.errors = append(t.errors, strings.Join(words, " "))
		}
	}
}

// Errors returns the page's errors so far, oldest first: uncaught exceptions, console errors and warnings, failed requests, violations of
// its content security policy.
func (t *Tab) Errors() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.errors)
}

// Requests returns every address that the page has requested so far, oldest first.
func (t *Tab) Requests() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.requests)
}

// Go navigates the tab to another address and returns after the page's load event.
func (t *Tab) Go(url string) {
	t.t.Helper()
	t.do(url, chromedp.Navigate(url))
}

// Reload loads the page again and returns after its load event.
func (t *Tab) Reload() {
	t.t.Helper()
	t.do("the page does not load again", chromedp.Reload())
}

// Resize sets the viewport's size in CSS pixels, at one device pixel each.
func (t *Tab) Resize(width, height int) {
	t.t.Helper()
	t.Scale(width, height, 1)
}

// Scale sets the viewport's size in CSS pixels and the number of device pixels for each.
func (t *Tab) Scale(width, height int, factor float64) {
	t.t.Helper()
	t.do("sizing the viewport", chromedp.EmulateViewport(int64(width), int64(height), chromedp.EmulateScale(factor)))
}

// Prefer makes media queries answer as on a system with the given preference, for example ("prefers-color-scheme", "dark").
func (t *Tab) Prefer(feature, value string) {
	t.t.Helper()
	t.do(feature, call(emulation.SetEmulatedMedia,
		emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: feature, Value: value}}}))
}

// Eval runs a JavaScript expression in the page, waits if its value is a promise, and decodes the value into result, which may be nil.
func (t *Tab) Eval(expression string, result any) {
	t.t.Helper()
	raw := get(t, expression, chromedp.Evaluate[[]byte](expression, chromedp.EvalAwaitPromise))
	if result == nil {
		return
	}
	if raw == nil {
		t.t.Fatalf("%s has no value that could be read", expression)
	}
	if err := json.Unmarshal(raw, result); err != nil {
		t.t.Fatalf("%s: %v", expression, err)
	}
}

// Wait returns once the JavaScript expression is true. The page checks it every 8 ms. (chromedp.Poll needs eval, which the pages'
// policies forbid.)
func (t *Tab) Wait(expression string) {
	t.t.Helper()
	var ok bool
	t.Eval(fmt.Sprintf(`new Promise(done => {
		const end = performance.now() + %d;
		const look = () => {
			let v = false;
			try { v = Boolean(%s); } catch {}
			if (v || performance.now() > end) done(v); else setTimeout(look, 8);
		};
		look(); })`, (patience-patience/4).Milliseconds(), expression), &ok)
	if !ok {
		t.t.Fatalf("never became true: %s", expression)
	}
}

// hold is the left button, held while the mouse moves.
func hold(p *input.DispatchMouseEventParams) {
	p.Button, p.Buttons = input.MouseButtonLeft, 1
}

// Hover moves the mouse to x, y (CSS pixels of the viewport).
func (t *Tab) Hover(x, y float64) {
	t.t.Helper()
	t.do("moving the mouse", chromedp.MouseEvent(chromedp.MouseMoved, x, y))
}

// Click moves to x, y, presses and releases.
func (t *Tab) Click(x, y float64) {
	t.t.Helper()
	t.do("clicking", chromedp.MouseEvent(chromedp.MouseMoved, x, y), chromedp.MouseClickXY(x, y))
}

// Drag presses at the first point, moves to the second in a few steps, and releases.
func (t *Tab) Drag(x0, y0, x1, y1 float64) {
	t.t.Helper()
	actions := []chromedp.Action[chromedp.Void]{
		chromedp.MouseEvent(chromedp.MouseMoved, x0, y0),
		chromedp.MouseEvent(chromedp.MousePressed, x0, y0, hold, chromedp.ClickCount(1)),
	}
	for i := 1.0; i <= 4; i++ {
		actions = append(actions, chromedp.MouseEvent(chromedp.MouseMoved, x0+(x1-x0)*i/4, y0+(y1-y0)*i/4, hold))
	}
	t.do("dragging", append(actions, chromedp.MouseEvent(chromedp.MouseReleased, x1, y1, chromedp.ButtonLeft, chromedp.ClickCount(1)))...)
}

// The modifier keys that can be held while the wheel turns.
const (
	None  = chromedp.ModifierNone
	Alt   = chromedp.ModifierAlt
	Shift = chromedp.ModifierShift
)

// Wheel turns the wheel at x, y by dx, dy CSS pixels. The browser requires both, and chromedp's own type omits a zero.
func (t *Tab) Wheel(x, y, dx, dy float64, modifiers chromedp.Modifier) {
	t.t.Helper()
	t.do("turning the wheel", chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		return target.Call(ctx, input.DispatchMouseEvent.Method,
			map[string]any{"type": chromedp.MouseWheel, "x": x, "y": y, "deltaX": dx, "deltaY": dy, "modifiers": modifiers}, nil)
	}))
}

// keys are the named keys.
var keys = map[string]string{"Enter": kb.Enter, "Escape": kb.Escape, "Tab": kb.Tab, "Home": kb.Home, "End": kb.End,
	"ArrowLeft": kb.ArrowLeft, "ArrowRight": kb.ArrowRight, "ArrowUp": kb.ArrowUp, "ArrowDown": kb.ArrowDown}

// Press presses and releases one key: a character, or a name of KeyboardEvent.key such as "ArrowLeft". The press carries the text, so
// that a page that handles the press itself can suppress the character; chromedp.KeyEvent types it with a separate event.
func (t *Tab) Press(key string) {
	t.t.Helper()
	for _, r := range cmp.Or(keys[key], key) {
		events := kb.Encode(r)
		down, up := events[0], events[len(events)-1]
		if len(events) == 3 {
			down.Text = events[1].Text
		}
		t.do("pressing "+key, call(input.DispatchKeyEvent, *down), call(input.DispatchKeyEvent, *up))
	}
}

// Type types text into the focused element.
func (t *Tab) Type(text string) {
	t.t.Helper()
	t.do("typing", call(input.InsertText, input.InsertTextParams{Text: text}))
}

// PNG returns a picture of the viewport as PNG.
func (t *Tab) PNG() []byte {
	t.t.Helper()
	return get(t, "a picture of the page", chromedp.CaptureScreenshot())
}

// Picture returns a picture of the viewport.
func (t *Tab) Picture() image.Image {
	t.t.Helper()
	picture, err := png.Decode(bytes.NewReader(t.PNG()))
	if err != nil {
		t.t.Fatalf("a picture of the page: %v", err)
	}
	return picture
}
