package pserver

import "context"

// Server is the pserver daemon.
type Server struct{ cfg Config }

// Status is the content of /status.
type Status struct{}

// New checks the configuration. It does no I/O.
func New(cfg Config) (*Server, error) { return &Server{cfg: cfg}, cfg.Validate() }

// Run serves the job until it is complete, until ctx ends (an orderly stop:
// nil), or until something is fatal: the error's job.ExitCode says what.
func (s *Server) Run(ctx context.Context) error { return nil }

// Ready tells why the pserver does not serve, nil if it does.
func (s *Server) Ready() error { return nil }

// Status says what the pserver does and what it waits for.
func (s *Server) Status() Status { return Status{} }
