// Package admin is the HTTP port of every process, for people and monitors:
//
//	/metrics       Prometheus metrics of the process's own registry
//	/healthz       200 while the process runs: alive
//	/readyz        200 when it does its work; 503 and the reason while it cannot
//	/status        what the process is doing, as JSON
//	/debug/pprof/  Go's profiles
//
// Alive and ready differ on purpose: a pserver that waits for its lease is
// healthy, and a supervisor must not restart it for that. The port carries no
// commands and no secrets, and nothing of the job depends on it.
package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/sirupsen/logrus"

	"starfish/internal/transport"
)

const (
	readTimeout  = 10 * time.Second
	drainTimeout = time.Second
	maxHeaders   = 16 << 10
)

// Config describes the port.
type Config struct {
	// Network defaults to transport.TCP.
	Network transport.Network
	// Address is host:port; port 0 chooses a free one.
	Address string
	// Metrics is what /metrics shows. Default: nothing.
	Metrics prometheus.Gatherer
	// Ready returns nil or why the process is not ready. Default: always ready.
	Ready func() error
	// Status returns what /status shows as JSON. Default: an empty object.
	Status func() any
	Log    logrus.FieldLogger
}

// Server is a listening port. It is served by Run.
type Server struct {
	listener net.Listener
	http     *http.Server
	log      logrus.FieldLogger
}

// Listen opens the port, so that a bad address is an error at start.
func Listen(c Config) (*Server, error) {
	if c.Network == nil {
		c.Network = transport.TCP
	}
	l, err := c.Network.Listen(c.Address)
	if err != nil {
		return nil, fmt.Errorf("admin: listen at %s: %w", c.Address, err)
	}
	return &Server{listener: l, log: c.Log, http: &http.Server{
		Handler:           handler(c),
		ReadTimeout:       readTimeout,
		ReadHeaderTimeout: readTimeout,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    maxHeaders,
		ErrorLog:          nil,
	}}, nil
}

// Address is where the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// Run serves until ctx ends; nil after that.
func (s *Server) Run(ctx context.Context) error {
	stopped := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(stopped)
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
		defer cancel()
		if s.http.Shutdown(ctx) != nil {
			_ = s.http.Close() // whoever still downloads a profile is cut off
		}
	})
	err := s.http.Serve(s.listener)
	if !stop() {
		<-stopped
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("admin: serve: %w", err)
}

func handler(c Config) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) { ready(w, c.Ready) })
	mux.HandleFunc("GET /status", func(w http.ResponseWriter, _ *http.Request) { status(w, c.Status, c.Log) })
	mux.Handle("GET /metrics", metrics(c.Metrics))
	mux.HandleFunc("GET /debug/pprof/", pprof.Index)
	mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	return mux
}

func metrics(g prometheus.Gatherer) http.Handler {
	if g == nil {
		g = prometheus.NewRegistry()
	}
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{})
}

func ready(w http.ResponseWriter, f func() error) {
	if f != nil {
		if err := f(); err != nil {
			text(w, http.StatusServiceUnavailable, err.Error())
			return
		}
	}
	text(w, http.StatusOK, "ok")
}

func status(w http.ResponseWriter, f func() any, log logrus.FieldLogger) {
	var v any = struct{}{}
	if f != nil {
		v = f()
	}
	body, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		log.WithError(err).Error("the status cannot be shown")
		text(w, http.StatusInternalServerError, "the status cannot be shown")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(body, '\n')) // the reader has gone
}

func text(w http.ResponseWriter, code int, s string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = fmt.Fprintln(w, s) // the reader has gone
}
