package transport

import (
	"context"
	"io"
	"sync"
)

const (
	// recordSize bounds what is kept of a connection, and recordConns of how many
	// connections of a host.
	recordSize  = 256 << 10
	recordConns = 8
)

// record is what was written to a connection, from its beginning.
type record struct {
	to string

	mu   sync.Mutex
	data []byte
}

func (r *record) add(b []byte) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.data = append(r.data, b[:min(len(b), recordSize-len(r.data))]...)
}

// Record keeps from now on what is sent over new connections, for Repeat.
func (m *Memory) Record() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.recording = true
}

// record begins a record of a connection; nil if none is kept.
func (m *Memory) record(from, to string) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.recording {
		return nil
	}
	h := m.host(from)
	if len(h.said) == recordConns {
		h.said = append(h.said[:0], h.said[1:]...)
	}
	r := &record{to: to}
	h.said = append(h.said, r)
	return r
}

// Repeat delivers once more, over connections of its own, what a host has sent
// over its newest connections so far, those that have ended included: requests
// that arrive twice, and after later ones. The answers are thrown away. Ctx bounds
// how long it may take.
func (m *Memory) Repeat(ctx context.Context, host string) {
	m.mu.Lock()
	said := append([]*record(nil), m.host(host).said...)
	m.mu.Unlock()
	for _, r := range said {
		r.mu.Lock()
		data := append([]byte(nil), r.data...)
		r.mu.Unlock()
		if len(data) > 0 {
			go m.repeat(ctx, host, r.to, data)
		}
	}
}

func (m *Memory) repeat(ctx context.Context, from, to string, data []byte) {
	conn, err := memoryHost{m, from}.dial(ctx, to, false)
	if err != nil {
		return
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	if _, err := conn.Write(data); err != nil {
		return
	}
	conn.(*memoryConn).out.finish()
	_, _ = io.Copy(io.Discard, conn)
}
