package transport

import (
	"io"
	"net"
	"os"
	"sync"
	"time"
)

// pipeSize bounds what is under way in one direction.
const pipeSize = 1 << 20

// pipe is one direction of a memory connection. Everything that waits, waits
// for wake, which is closed and replaced at every change, or for a timer.
type pipe struct {
	net      *Memory
	from, to string
	record   *record // nil: what passes is not kept

	mu              sync.Mutex
	wake            chan struct{}
	packets         []packet
	size            int
	finished        bool  // the writer has closed
	err             error // both ends fail with it
	readBy, writeBy time.Time
}

// packet is what one Write sent, and when it left.
type packet struct {
	data []byte
	sent time.Time
	held bool // written by a process that is frozen
}

func newPipe(m *Memory, from, to string) *pipe {
	return &pipe{net: m, from: from, to: to, wake: make(chan struct{})}
}

// signal wakes everybody; p.mu is held.
func (p *pipe) signal() {
	close(p.wake)
	p.wake = make(chan struct{})
}

func (p *pipe) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
		p.signal()
	}
}

func (p *pipe) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.finished = true
	p.signal()
}

func (p *pipe) deadline(which *time.Time, t time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*which = t
	p.signal()
}

func (p *pipe) write(b []byte) (int, error) {
	written := 0
	held := p.net.frozen(p.from)
	p.record.add(b)
	for {
		p.mu.Lock()
		wake, by := p.wake, p.writeBy
		switch {
		case p.finished:
			p.mu.Unlock()
			return written, net.ErrClosed
		case p.err != nil:
			p.mu.Unlock()
			return written, p.err
		case p.size < pipeSize:
			n := min(len(b), pipeSize-p.size)
			p.packets = append(p.packets, packet{append([]byte(nil), b[:n]...), p.net.clock.Now(), held})
			p.size += n
			written, b = written+n, b[n:]
			p.signal()
		}
		p.mu.Unlock()
		if len(b) == 0 {
			return written, nil
		}
		if err := p.wait(wake, nil, by, time.Time{}); err != nil {
			return written, err
		}
	}
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		silent, delay, changed := p.net.route(p.from, p.to)
		stopped := p.net.frozen(p.from)
		p.mu.Lock()
		wake, by := p.wake, p.readBy
		var arrives time.Time
		switch {
		case p.err != nil:
			p.mu.Unlock()
			return 0, p.err
		case silent, len(p.packets) != 0 && p.packets[0].held && stopped:
		case len(p.packets) != 0:
			arrives = p.packets[0].sent.Add(delay)
			if !arrives.After(p.net.clock.Now()) {
				n := p.take(b)
				p.mu.Unlock()
				return n, nil
			}
		case p.finished:
			p.mu.Unlock()
			return 0, io.EOF
		}
		p.mu.Unlock()
		if err := p.wait(wake, changed, by, arrives); err != nil {
			return 0, err
		}
	}
}

// take moves the first packet's data to b; p.mu is held.
func (p *pipe) take(b []byte) int {
	first := &p.packets[0]
	n := copy(b, first.data)
	first.data = first.data[n:]
	if len(first.data) == 0 {
		p.packets = p.packets[1:]
	}
	p.size -= n
	p.signal()
	return n
}

// wait returns at a change, when the time `until` has come, or with an error at
// the deadline; zero times never come.
func (p *pipe) wait(wake, changed <-chan struct{}, by, until time.Time) error {
	deadline, stop := p.timer(by)
	defer stop()
	arrival, stop := p.timer(until)
	defer stop()
	select {
	case <-wake:
	case <-changed:
	case <-arrival:
	case <-deadline:
		return os.ErrDeadlineExceeded
	}
	return nil
}

func (p *pipe) timer(t time.Time) (<-chan time.Time, func()) {
	if t.IsZero() {
		return nil, func() {}
	}
	timer := p.net.clock.Timer(t.Sub(p.net.clock.Now()))
	return timer.C(), func() { timer.Stop() }
}
