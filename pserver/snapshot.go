package pserver

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"runtime"
	"slices"
	"sync"

	"starfish/internal/wire"
	"starfish/pserver/ledger"
)

// BlockBytes is the largest block that WriteTo emits.
const BlockBytes = 1 << 20

// cutVersion is the version of the sections' form.
const cutVersion = 1

// The sections of a cut, in this order. A parameter's section has the
// parameter's name behind the prefix, and is absent where the shard has nothing
// of it.
const (
	sectionMeta   = "meta"
	sectionLedger = "ledger"
	prefixDense   = "dense/"
	prefixSparse  = "sparse/"
)

// cutMeta is the content of the section meta.
type cutMeta struct {
	V     int
	Shard int
	Lanes int
	// Parameters is the record `parameters` as JSON.
	Parameters []byte
	// Words is the number of float32 words of each parameter's section.
	Words []int64
}

// Cut is a shard at one moment: weights, optimizer state and ledger. It is read
// from the shard's own memory while pushes go on; what they change is put aside
// first, as long as the cut needs it (kept.go).
//
// So a cut holds at most one copy of the shard's words, one bit a row and a
// piece of 4 KiB for each 256 KiB of rows, and lets go of them as it is written.
type Cut struct {
	// lock is the shard's.
	lock    sync.Locker
	params  params
	content *content
	meta    cutMeta
	ledger  ledger.Snapshot
	summary ledger.Summary
}

// Cut notes the moment. It holds the lock for a time that depends on the number
// of parameters and the size of the ledger alone. There is one cut at a time:
// ErrCutting if the one before has not been closed. It fails with the shard's
// Err, too.
func (s *Shard) Cut() (*Cut, error) { return s.cut(&s.mu) }

func (s *Shard) cut(lock sync.Locker) (*Cut, error) {
	parameters, err := json.Marshal(s.job)
	if err != nil {
		return nil, fmt.Errorf("cut shard %d: %w", s.number, err)
	}
	c := &Cut{
		lock: lock, params: s.params,
		meta: cutMeta{V: cutVersion, Shard: s.number, Lanes: s.lanes, Parameters: parameters},
	}
	lock.Lock()
	defer lock.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	if s.content.cut != nil {
		return nil, ErrCutting
	}
	c.content, s.content.cut = s.content, c
	c.ledger, c.summary = s.content.ledger.Snapshot(), s.content.ledger.Summary()
	for i := range s.params {
		c.meta.Words = append(c.meta.Words, s.content.mark(i))
	}
	return c, nil
}

// mark begins the cut of a parameter, and counts its words.
func (c *content) mark(parameter int) (words int64) {
	if t := c.tables[parameter]; t != nil {
		t.cut = newTableCut(t)
		return int64(t.rows.N) * int64(t.rows.Words())
	}
	d := c.dense[parameter]
	d.cut = &denseCut{blocks: d.at}
	return d.words
}

// Close ends the cut, whether it was written or not: pushes put nothing aside
// any more. It may be called more than once.
func (c *Cut) Close() {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.content.cut != c {
		return
	}
	c.content.cut = nil
	for i := range c.params {
		c.content.release(i)
	}
}

func (c *content) release(parameter int) {
	if t := c.tables[parameter]; t != nil {
		t.cut = nil
		return
	}
	c.dense[parameter].cut = nil
}

func sectionOf(p *parameter) string {
	if p.Sparse {
		return prefixSparse + p.Name
	}
	return prefixDense + p.Name
}

// Ledger is the summary of the cut's ledger, for the checkpoint's meta record.
func (c *Cut) Ledger() ledger.Summary { return c.summary }

// WriteTo hands the cut's sections out, in order, in blocks of at most
// BlockBytes, and closes the cut. A block is valid only during the call, which
// is made without the lock. A cut is written once, and not after Close.
func (c *Cut) WriteTo(emit func(section string, data []byte) error) error {
	defer c.Close()
	if err := emitGob(emit, sectionMeta, &c.meta); err != nil {
		return err
	}
	if err := emitGob(emit, sectionLedger, &c.ledger); err != nil {
		return err
	}
	r := taken{words: make([]float32, 0, c.largest())}
	for i, p := range c.params {
		section := sectionOf(p)
		for more := true; more; {
			// Whoever takes the lock late in his share of a processor may lose the
			// processor while he holds it, and keep pushes waiting for a whole share
			// of everybody else.
			runtime.Gosched()
			var words []float32
			if words, more = c.take(i, &r); len(words) == 0 {
				continue
			}
			if err := emitWords(emit, section, words); err != nil {
				return err
			}
		}
	}
	return nil
}

// largest is the number of words that a take can return. So it makes no memory
// under the lock.
func (c *Cut) largest() (words int) {
	for i := range c.params {
		if t := c.content.tables[i]; t != nil {
			words = max(words, t.rows.Stride<<t.cut.shift)
		} else if d := c.content.dense[i]; len(d.at) > 0 {
			words = max(words, len(d.at[0].words))
		}
	}
	return words
}

// take returns the next words of a parameter, which may be none, and whether there
// are more. r is memory for them.
func (c *Cut) take(parameter int, r *taken) (words []float32, more bool) {
	if t := c.content.tables[parameter]; t != nil {
		cut := c.takeRows(t, r)
		return cut.restore(r), len(r.words) > 0
	}
	c.lock.Lock()
	defer c.lock.Unlock()
	d := c.content.dense[parameter]
	words = d.cut.take(r.words)
	if len(words) == 0 {
		d.cut = nil
	}
	return words, len(words) > 0
}

func (c *Cut) takeRows(t *table, r *taken) *tableCut {
	c.lock.Lock()
	defer c.lock.Unlock()
	cut := t.cut
	if cut.take(r); len(r.words) == 0 {
		t.cut = nil
	}
	return cut
}

func emitGob(emit func(string, []byte) error, section string, v any) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(v); err != nil {
		return fmt.Errorf("encode section %s: %w", section, err)
	}
	for b.Len() > 0 {
		if err := emit(section, b.Next(BlockBytes)); err != nil {
			return err
		}
	}
	return nil
}

// emitWords writes words little-endian, which is how they lie in memory.
func emitWords(emit func(string, []byte) error, section string, words []float32) error {
	for data := range slices.Chunk(wire.Bytes(words), BlockBytes) {
		if err := emit(section, data); err != nil {
			return err
		}
	}
	return nil
}
