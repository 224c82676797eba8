package memviz

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"tenon.dev/fault"
)

// serve starts a server and returns its URL and a function that ends it.
func serve(t *testing.T, rec *Recording) (url string, end func() error) {
	t.Helper()
	s, err := NewServer(rec, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	return s.URL(), func() error { cancel(); return <-done }
}

func TestServer(t *testing.T) {
	rec := synthetic(t, 1, 3000)
	url, end := serve(t, rec)
	client := &http.Client{Timeout: 10 * time.Second}
	defer client.CloseIdleConnections()
	ask := func(method, url, host string) (*http.Response, string) {
		t.Helper()
		r, err := http.NewRequest(method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			r.Host = host
		}
		res, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res, string(b)
	}
	m := regexp.MustCompile(`^(http://127\.0\.0\.1:\d+/)[0-9a-f]{32}/$`).FindStringSubmatch(url)
	if m == nil {
		t.Fatalf("the address is %s", url)
	}
	for _, c := range []struct {
		method, url, host string
		status            int
		kind, body        string
	}{
		{"GET", url, "", 200, "text/html", "tenon memviz"},
		{"GET", url + "data.js", "", 200, "javascript", "request"},
		{"GET", url + "page.css", "", 200, "text/css", "{"},
		{"GET", url + "info", "", 200, "application/json", `"devices"`},
		{"GET", url + "tile?device=0&view=active&level=0&index=0", "", 200, "application/octet-stream", "TNTL"},
		{"HEAD", url + "info", "", 200, "application/json", ""},
		{"GET", url + "nothing", "", 400, "application/json", `{"error":"there is no request \"nothing\""}`},
		{"GET", url + "absent.js", "", 404, "", ""},
		{"GET", url + "../server.go", "", 404, "", ""},
		{"GET", m[1], "", 404, "", ""},
		{"GET", m[1] + "info", "", 404, "", ""},
		{"GET", m[1] + "00000000000000000000000000000000/info", "", 404, "", ""},
		{"POST", url + "info", "", 405, "", "only GET"},
		{"GET", url + "info", "evil.example:80", 404, "", ""},
	} {
		res, body := ask(c.method, c.url, c.host)
		if res.StatusCode != c.status || !strings.Contains(res.Header.Get("Content-Type"), c.kind) || !strings.Contains(body, c.body) {
			t.Errorf("%s %s: %d %s %.200q", c.method, c.url, res.StatusCode, res.Header.Get("Content-Type"), body)
		}
		if res.Header.Get("Content-Security-Policy") != policy || res.Header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: the headers are %v", c.url, res.Header)
		}
	}
	if err := end(); err != nil {
		t.Errorf("ending: %v", err)
	}
	if c, err := net.DialTimeout("tcp", strings.Split(url, "/")[2], time.Second); err == nil {
		c.Close()
		t.Error("the port is still open")
	}
}

// A failing listener ends Serve with an error.
func TestServerBroken(t *testing.T) {
	s, err := NewServer(synthetic(t, 1, 100), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.listener.Close()
	if err := s.Serve(context.Background()); err == nil || !strings.Contains(err.Error(), "server ended") {
		t.Error(err)
	}
}

// TestServerEnded ends a server in the middle of requests: each is answered or refused, and a further Serve returns an error that the
// server has ended.
func TestServerEnded(t *testing.T) {
	s, err := NewServer(synthetic(t, 1, 1000), nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 2)
	for range 2 { // a concurrent Serve ends too
		go func() { done <- s.Serve(ctx) }()
	}
	var wg sync.WaitGroup
	answered := make(chan struct{}, 1000)
	client := &http.Client{Timeout: 10 * time.Second}
	for range 4 {
		wg.Go(func() {
			for {
				res, err := client.Get(s.URL())
				if err != nil {
					return
				}
				_, _ = io.ReadAll(res.Body) // a slow end may cut the body off
				if res.Body.Close(); res.StatusCode != http.StatusOK {
					t.Error(res.Status)
				}
				select {
				case answered <- struct{}{}:
				default:
				}
			}
		})
	}
	for range 20 {
		<-answered
	}
	cancel()
	for range 2 {
		if err := <-done; err != nil && fault.KindOf(err) != fault.Closed {
			t.Error(err)
		}
	}
	client.CloseIdleConnections()
	wg.Wait()
	if err := s.Serve(context.Background()); fault.KindOf(err) != fault.Closed || !strings.Contains(err.Error(), "has ended") {
		t.Error(err)
	}
}

func TestStatic(t *testing.T) {
	before, after := synthetic(t, 1, 6000), synthetic(t, 2, 30000)
	write := func(o StaticOptions) (string, map[string]json.RawMessage) {
		t.Helper()
		var b strings.Builder
		if err := WriteStatic(&b, after, before, o); err != nil {
			t.Fatal(err)
		}
		m := regexp.MustCompile(`(?s)<script id="tenon-static" type="application/json">(.*?)</script>`).FindStringSubmatch(b.String())
		if m == nil {
			t.Fatal("nothing is embedded")
		}
		var answers map[string]json.RawMessage
		if err := json.Unmarshal([]byte(m[1]), &answers); err != nil {
			t.Fatal(err)
		}
		return b.String(), answers
	}
	page, answers := write(StaticOptions{View: ViewState})
	var info Info
	if err := json.Unmarshal(answers["info"], &info); err != nil {
		t.Fatal(err)
	}
	if info.First != ViewState || info.Static == nil || info.Static.FinestLevel[0] != 0 || len(info.Static.States["0"]) < 10 {
		t.Errorf("info %+v, static %+v", info, info.Static)
	}
	v := &viewer{rec: after, before: before, first: ViewState}
	for _, want := range []string{"diff?device=0&at=end", "diff?device=0&at=peak", "tile?device=0&view=cached&level=1&index=0",
		"at?device=0&state=" + decimal(info.Devices[0].PeakState) + "&top=50", "blocks?device=0&state=" + decimal(info.Devices[0].Events),
		"stack?id=1"} {
		got, ok := answers[want]
		if !ok {
			t.Errorf("%s is not there", want)
		} else if !strings.HasPrefix(want, "tile") && string(got) != string(get(t, v, want)) {
			t.Errorf("%s is %.200s", want, got)
		}
	}
	// The page loads nothing from elsewhere, and the policy allows only inline content.
	if m := regexp.MustCompile(`(?:src|href)="([^"#d][^"]*)"`).FindStringSubmatch(page); m != nil {
		t.Errorf("the page refers to %q", m[1])
	}
	policy := regexp.MustCompile(`Content-Security-Policy" content="([^"]+)"`).FindStringSubmatch(page)
	inline := regexp.MustCompile(`(?s)<(?:script|style)>(.*?)</(?:script|style)>`).FindAllStringSubmatch(page, -1)
	if policy == nil || !strings.HasPrefix(policy[1], "default-src 'none'") || len(inline) < 2 {
		t.Fatalf("policy %v, %d inline parts", policy, len(inline))
	}
	for _, m := range inline {
		sum := sha256.Sum256([]byte(m[1]))
		if !strings.Contains(policy[1], base64.StdEncoding.EncodeToString(sum[:])) {
			t.Errorf("the policy refuses %.60q", m[1])
		}
	}
	// A small size limit drops levels and states, but never the coarsest picture.
	small, answers := write(StaticOptions{Bytes: 100_000})
	if err := json.Unmarshal(answers["info"], &info); err != nil {
		t.Fatal(err)
	}
	if len(small) >= len(page) || info.Static.FinestLevel[0] == 0 ||
		answers["tile?device=0&view=active&level="+decimal(info.Devices[0].TopLevel)+"&index=0"] == nil {
		t.Errorf("%d bytes instead of %d, levels from %d", len(small), len(page), info.Static.FinestLevel[0])
	}
}

// refuser is a writer that always fails.
type refuser struct{}

func (refuser) Write([]byte) (int, error) { return 0, io.ErrShortWrite }

func TestRefusedOutput(t *testing.T) {
	rec := synthetic(t, 1, 300)
	for name, err := range map[string]error{
		"static":  WriteStatic(refuser{}, rec, nil),
		"flame":   WriteFlameGraph(refuser{}, strings.NewReader("a;b 1\n"), ""),
		"holders": WriteHolders(refuser{}, rec, 0, atPeak),
		"stats":   WriteStats(refuser{}, recorded(t, "extra_streams"), ""),
	} {
		if err == nil || !strings.Contains(err.Error(), "writing the") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Concurrent requests of several pages get the same answers as single ones.
func TestConcurrentRequests(t *testing.T) {
	rec := synthetic(t, 3, 200_000)
	v := &viewer{rec: rec, before: rec}
	var requests []string
	for i := range 60 {
		state := decimal(i * 3001 % rec.devices[0].entry.Events)
		requests = append(requests, "at?device=0&state="+state, "events?device=0&count=5&from="+state,
			"search?device=0&limit=3&q=layer"+decimal(i%7),
			"tile?device=0&view=active&level=2&index="+decimal(i), "tile?device=0&view=active&level=0&index="+decimal(i)+
				"&filter=size>"+decimal(i%6)+"k")
	}
	want := map[string]string{}
	for _, r := range requests {
		want[r] = string(get(t, v, r))
	}
	rec.chunks, rec.filters = nil, nil
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range requests {
				r := requests[(i*7+g*50)%len(requests)]
				if got, err := answerText(v, r); err != nil || string(got) != want[r] {
					t.Errorf("%s differs: %v", r, err)
				}
			}
		})
	}
	wg.Wait()
}
