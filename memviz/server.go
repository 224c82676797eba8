package memviz

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"net"
	"net/http"
	"strings"
	"time"

	"tenon.dev/fault"
)

//go:embed page
var pages embed.FS

// page is the folder of the page.
func page() fs.FS {
	sub, err := fs.Sub(pages, "page")
	if err != nil {
		panic(err) // the name is a constant and valid
	}
	return sub
}

// policy is the Content-Security-Policy of the page: it may load only from this server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

// The limits of a connection: requests are one line without a body, and the longest answers are a few megabytes, for which the file may
// have to be read.
const (
	headerTimeout = 10 * time.Second
	answerTimeout = 5 * time.Minute
	idleTimeout   = 2 * time.Minute
	maxHeader     = 1 << 16 // bytes
)

// Server shows a recording to browsers on this machine. It listens only on the loopback interface and answers only below a path that
// nobody can guess.
type Server struct {
	listener net.Listener
	token    string
	http     http.Server
}

// NewServer listens on a free port of 127.0.0.1. before is the recording to compare with, or nil. Serve answers the requests.
func NewServer(rec, before *Recording) (*Server, error) {
	if err := rec.usable(); err != nil {
		return nil, err
	}
	secret := make([]byte, 16)
	rand.Read(secret) // never fails
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		return nil, fault.Wrap(fault.System, err, "the viewer cannot listen on 127.0.0.1")
	}
	s := &Server{listener: l, token: hex.EncodeToString(secret)}
	s.http = http.Server{Handler: s.handler(&viewer{rec: rec, before: before, first: ViewActive}), ReadHeaderTimeout: headerTimeout,
		ReadTimeout:  headerTimeout,
		WriteTimeout: answerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader}
	return s, nil
}

// URL is the page's address.
func (s *Server) URL() string {
	if s == nil || s.listener == nil {
		return ""
	}
	return "http://" + s.listener.Addr().String() + "/" + s.token + "/"
}

// Serve answers requests until ctx ends, then waits at most a second for requests in progress. The server is then closed: a further Serve
// returns an error of kind Closed.
func (s *Server) Serve(ctx context.Context) error {
	if s == nil || s.listener == nil || ctx == nil {
		return fault.New(fault.Invalid, "the server is none that NewServer returned, or the context is nil")
	}
	done := make(chan error, 1)
	go func() { done <- s.http.Serve(s.listener) }()
	select {
	case err := <-done:
		if errors.Is(err, http.ErrServerClosed) {
			return fault.New(fault.Closed, "the viewer's server has ended; make another one with NewServer")
		}
		return fault.Wrap(fault.System, err, "the viewer's server ended")
	case <-ctx.Done():
	}
	end, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := s.http.Shutdown(end); err != nil {
		s.http.Close()
	}
	if err := <-done; !errors.Is(err, http.ErrServerClosed) {
		return fault.Wrap(fault.System, err, "the viewer's server ended")
	}
	return nil
}

// handler answers below the token, and returns 404 for everything else.
func (s *Server) handler(v *viewer) http.Handler {
	files := http.FileServerFS(page())
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		path, ok := strings.CutPrefix(r.URL.Path, "/"+s.token+"/")
		// A foreign name for this address would be a rebinding attack.
		if host, _, err := net.SplitHostPort(r.Host); !ok || err != nil || host != "127.0.0.1" && host != "localhost" {
			http.NotFound(w, r)
			return
		}
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "only GET is answered", http.StatusMethodNotAllowed)
			return
		}
		if path == "" || strings.Contains(path, ".") {
			r.URL.Path = "/" + path
			files.ServeHTTP(w, r)
			return
		}
		body, isTile, err := v.answer(path, r.URL.Query())
		switch {
		case err != nil:
			body, _ = json.Marshal(Error{Error: err.Error()})
			h.Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
		case isTile:
			h.Set("Content-Type", "application/octet-stream")
		default:
			h.Set("Content-Type", "application/json")
		}
		w.Write(body) // a browser that went away needs no answer
	})
}
