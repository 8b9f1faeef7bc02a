package client

import "starfish/internal/wire"

// The bytes that a message needs for an array beside its values, at most.
const arrayOverhead = 32

// send writes one exchange: one message, or several where a message or its
// answer would exceed wire.PartSize. At every shard the push comes first.
func (p *peer) send(c *Call) error {
	m := message{peer: p, call: c}
	m.begin()
	if c.turn.kind != wire.NoBarrier {
		return m.turns()
	}
	for _, shard := range p.shards {
		m.section(shard)
		if c.push != nil {
			if err := m.push(shard); err != nil {
				return err
			}
		}
		if c.pull != nil {
			if err := m.pull(shard); err != nil {
				return err
			}
		}
	}
	m.part.last = true
	return m.flush()
}

// message is the message that is being written.
type message struct {
	peer  *peer
	call  *Call
	part  *part
	buf   *wire.Buffer
	empty bool // nothing in it yet that could go into the next message instead
	// barrier is what its sections mean to their shards' barriers.
	barrier wire.BarrierKind
}

func (m *message) begin() {
	p := m.peer
	select {
	case m.part = <-p.free:
	default:
		m.part = new(part)
	}
	p.seq++
	*m.part = part{call: m.call, seq: p.seq, sections: m.part.sections[:0], items: m.part.items[:0]}
	m.buf = p.buffers.Get()
	p.writer.Start(m.buf, p.session.client.c.Job, p.seq)
	m.empty = true
}

// flush sends the message. It waits while too many are unanswered.
func (m *message) flush() error {
	p := m.peer
	p.writer.Finish()
	p.asked.Add(1)
	select {
	case p.pending <- m.part:
	case <-p.session.ctx.Done():
		return p.session.Err()
	}
	return p.stream.Send(m.buf)
}

// section begins a shard's section.
func (m *message) section(shard int) {
	m.peer.writer.Section(shard, m.peer.session.view.Shards[shard].Generation)
	m.part.sections = append(m.part.sections, section{shard: shard, items: len(m.part.items)})
	if m.barrier != wire.NoBarrier {
		m.peer.writer.Barrier(wire.Barrier{Kind: m.barrier, Step: m.call.turn.step, Trainer: m.peer.session.client.c.Trainer})
		m.current().await = m.barrier == wire.Await
	}
}

func (m *message) current() *section { return &m.part.sections[len(m.part.sections)-1] }

// renew sends the message and begins another one with a section of shard.
func (m *message) renew(shard int) error {
	if err := m.flush(); err != nil {
		return err
	}
	m.begin()
	m.section(shard)
	return nil
}

// room is how many elements of the given sizes, in request and answer, still
// fit; at least one fits into a message that has nothing else.
func (m *message) room(request, answer int) int {
	w := &m.peer.writer
	n := (wire.PartSize - arrayOverhead - w.Size()) / request
	if answer > 0 {
		n = min(n, (wire.PartSize-arrayOverhead-w.AnswerSize())/answer)
	}
	if m.empty {
		n = max(n, 1)
	}
	return max(n, 0)
}

// push writes the shard's part of the batch's gradient.
func (m *message) push(shard int) error {
	n := 0
	m.beginPush(n)
	more := func() error {
		m.peer.writer.More()
		m.current().staged = true
		if err := m.renew(shard); err != nil {
			return err
		}
		n++
		m.beginPush(n)
		return nil
	}
	if m.call.meta.Void {
		return nil
	}
	if err := m.pushDense(shard, more); err != nil {
		return err
	}
	return m.pushRows(shard, more)
}

func (m *message) beginPush(part int) {
	m.peer.writer.Push(&m.call.meta, part)
	m.current().push = true
}

func (m *message) pushDense(shard int, more func() error) error {
	b := m.call.push
	for _, k := range b.layout.blocks[shard] {
		values := b.DenseGrad[k.dense][k.from:k.to]
		if m.room(4*len(values), 0) == 0 {
			if err := more(); err != nil {
				return err
			}
		}
		m.peer.writer.PushBlock(k.param, k.block, values)
		m.empty = false
	}
	return nil
}

func (m *message) pushRows(shard int, more func() error) error {
	b := m.call.push
	for i := range b.Tables {
		t, from, to := b.part(i, shard)
		for from < to {
			n := min(to-from, m.room(8+4*t.Dim, 0))
			if n == 0 {
				if err := more(); err != nil {
					return err
				}
				continue
			}
			m.peer.writer.PushRows(b.layout.tables[i].param, t.Keys[from:from+n], t.Grad[from*t.Dim:(from+n)*t.Dim])
			m.empty = false
			from += n
		}
	}
	return nil
}

// pull asks for the shard's part of the batch's values.
func (m *message) pull(shard int) error {
	if err := m.pullDense(shard); err != nil {
		return err
	}
	return m.pullRows(shard)
}

func (m *message) pullDense(shard int) error {
	b := m.call.pull
	// The layout has all blocks of a section before its keys, so a section
	// that is continued in another message keeps the order.
	for _, k := range b.layout.blocks[shard] {
		values := b.Dense[k.dense][k.from:k.to]
		if m.room(8, 4*len(values)) == 0 {
			if err := m.renew(shard); err != nil {
				return err
			}
		}
		m.peer.writer.PullBlock(k.param, k.block, len(values))
		m.expect(values)
	}
	return nil
}

func (m *message) pullRows(shard int) error {
	b := m.call.pull
	for i := range b.Tables {
		t, from, to := b.part(i, shard)
		for from < to {
			n := min(to-from, m.room(8, 4*t.Dim))
			if n == 0 {
				if err := m.renew(shard); err != nil {
					return err
				}
				continue
			}
			m.peer.writer.PullKeys(b.layout.tables[i].param, t.Keys[from:from+n], t.Dim)
			m.expect(t.Rows[from*t.Dim : (from+n)*t.Dim])
			from += n
		}
	}
	return nil
}

// expect notes where the answer's next values go.
func (m *message) expect(values []float32) {
	m.part.items = append(m.part.items, values)
	m.current().items = len(m.part.items)
	m.empty = false
}
