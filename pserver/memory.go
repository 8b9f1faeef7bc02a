package pserver

import (
	"errors"
	"fmt"
	"sync/atomic"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// ErrMemory: a push would create rows for which the process has no memory left.
// Nothing has changed; the push may be sent again when there is room.
var ErrMemory = errors.New("memory limit")

// MemoryError is what is wrapped beside ErrMemory.
type MemoryError struct {
	// Used of Limit bytes are taken; Need more are wanted.
	Used, Limit, Need int64
}

func (e *MemoryError) Error() string {
	return fmt.Sprintf("%s of %s are used, and new rows need %s more", job.Bytes(e.Used).Short(), job.Bytes(e.Limit).Short(), job.Bytes(e.Need).Short())
}

// Unwrap makes errors.Is(err, ErrMemory) true.
func (e *MemoryError) Unwrap() error { return ErrMemory }

// Memory accounts for what the tables and dense parameters of a process's shards
// take, and for the bytes that its stage holds, and bounds their sum. What it does
// not know of: messages, what an open cut puts aside, the program itself.
type Memory struct {
	limit int64 // 0: none
	stage *Stage
	used  atomic.Int64
}

// NewMemory returns an account with a limit in bytes, 0 for none. The bytes that
// stage holds count too; it may be nil.
func NewMemory(limit int64, stage *Stage) *Memory { return &Memory{limit: limit, stage: stage} }

// Used is what is accounted for, in bytes, staged ones included.
func (m *Memory) Used() int64 {
	used := m.used.Load()
	if m.stage != nil {
		used += m.stage.Held()
	}
	return used
}

// Limit in bytes; 0: none.
func (m *Memory) Limit() int64 { return m.limit }

// room is what is left, in bytes; negative beyond the limit. Only with a limit.
func (m *Memory) room() int64 { return m.limit - m.Used() }

// reserve takes so many bytes if there is room for them. Shards grow at the same
// time: what one has reserved no other gets.
func (m *Memory) reserve(bytes int64) error {
	if bytes == 0 {
		return nil
	}
	m.used.Add(bytes)
	if used := m.Used(); m.limit > 0 && used > m.limit {
		m.used.Add(-bytes)
		return &MemoryError{Used: used - bytes, Limit: m.limit, Need: bytes}
	}
	return nil
}

// grow reserves, before a push is applied whose rows have been found, what its new
// rows may take.
func (s *Shard) grow(p *wire.PushData) (reserved int64, err error) {
	rows := s.rows
	for i := range p.Sparse {
		v := &p.Sparse[i]
		reserved += s.content.tables[v.Param].index.growth(rows[:len(v.Keys)])
		rows = rows[len(v.Keys):]
	}
	return reserved, s.memory.reserve(reserved)
}

// account brings the account up to date with what the shard takes now; reserved
// is what was reserved for that. It is called under the shard's lock.
func (s *Shard) account(reserved int64) {
	bytes := int64(0)
	if !s.released && !errors.Is(s.broken, ErrBlank) {
		bytes = s.bytes()
	}
	if change := bytes - s.accounted - reserved; change != 0 {
		s.memory.used.Add(change)
	}
	s.accounted = bytes
}

// bytes is the memory of weights, optimizer state and indexes.
func (s *Shard) bytes() int64 {
	n := int64(0)
	for i := range s.params {
		if t := s.content.tables[i]; t != nil {
			n += t.index.bytes()
		} else {
			n += s.content.dense[i].words * 4
		}
	}
	return n + placesOf(s.params)
}

// Content is the memory of what the shard holds where no table is flat: what it
// takes elsewhere, at least. Which tables are flat is each process's choice.
func (s *Shard) Content() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.bytes() - placesOf(s.params)
	for _, t := range s.content.tables {
		if t != nil && t.flat {
			n += t.hashedBytes() - t.index.bytes()
		}
	}
	return n
}

// hashedBytes is what the table's rows take in a hashed one.
func (t *table) hashedBytes() int64 {
	const key = 2 // words
	words := int64(key + t.Dim + t.opt.Words(t.Dim))
	return int64(t.rows.N)*4*words + 4*int64(slotsFor(t.rows.N))
}

// Release takes the shard out of the account, for good: nobody uses it any more.
func (s *Shard) Release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	s.account(0)
}

func (t *hashed) growth(rows []uint32) int64 {
	missing := 0
	for _, row := range rows {
		if row == optimizer.None {
			missing++
		}
	}
	if missing == 0 {
		return 0
	}
	return t.rows.Growth(missing) + t.slotGrowth(missing)
}

func (t *hashed) bytes() int64 {
	return t.rows.Bytes() + int64(len(t.slots)+len(t.next))*4
}

// slotGrowth is what reserve will allocate for so many more rows.
func (t *hashed) slotGrowth(more int) int64 {
	n := len(t.slots)
	switch rows := t.rows.N + more; {
	case rows > n/4*3:
		return 4 * int64(max(slotsFor(rows)-len(t.next), 0))
	case t.next == nil && rows > n/8*5:
		return 4 * int64(2*n)
	}
	return 0
}

// placesOf is the memory of the places of flat tables, which those of one key space
// share.
func placesOf(list []*parameter) (n int64) {
	var seen [33]bool
	for _, p := range list {
		if p.flat && !seen[p.Bits] {
			seen[p.Bits] = true
			n += placesBytes(p.Bits)
		}
	}
	return n
}

// MemoryOf is what a shard takes before it has any rows: its dense parameters, its
// flat tables, which do not grow, and the beginning of the others. Of flat tables
// it is a bound. limit is the process's memory limit, 0 for none.
func MemoryOf(p job.Parameters, shard int, limit int64) (int64, error) {
	list, err := newParameters(p, shard)
	if err != nil {
		return 0, fmt.Errorf("memory of a shard: %w", err)
	}
	chooseFlat(list, limit)
	n := placesOf(list)
	for _, q := range list {
		switch {
		case q.flat:
			n += q.flatAtMost()
			continue
		case q.Sparse:
			n += 4 * firstSlots
			continue
		}
		for _, b := range q.blocks {
			words := q.blockLen(b)
			n += 4 * int64(words+q.opt.Words(words))
		}
	}
	return n, nil
}
