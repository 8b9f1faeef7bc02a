package pserver

import (
	"bytes"
	"encoding/binary"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"math"

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

// Cut is a consistent copy of a shard: weights, optimizer state and ledger of
// one moment.
type Cut struct {
	meta    cutMeta
	ledger  ledger.Snapshot
	summary ledger.Summary
	// names and words of the parameters' sections.
	names []string
	words [][][]float32
}

// Cut copies the shard under its lock. It fails with the shard's Err.
func (s *Shard) Cut() (*Cut, error) {
	parameters, err := json.Marshal(s.job)
	if err != nil {
		return nil, fmt.Errorf("cut shard %d: %w", s.number, err)
	}
	c := &Cut{meta: cutMeta{V: cutVersion, Shard: s.number, Lanes: s.lanes, Parameters: parameters}}
	for _, p := range s.params {
		c.names = append(c.names, sectionOf(p))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken != nil {
		return nil, s.broken
	}
	c.ledger, c.summary = s.content.ledger.Snapshot(), s.content.ledger.Summary()
	for i := range s.params {
		pieces, n := s.content.copyOf(i)
		c.words = append(c.words, pieces)
		c.meta.Words = append(c.meta.Words, n)
	}
	return c, nil
}

func sectionOf(p *parameter) string {
	if p.Sparse {
		return prefixSparse + p.Name
	}
	return prefixDense + p.Name
}

// copyOf copies a parameter's words, and counts them.
func (c *content) copyOf(parameter int) (pieces [][]float32, words int64) {
	add := func(w []float32) {
		pieces = append(pieces, append(make([]float32, 0, len(w)), w...))
		words += int64(len(w))
	}
	if t := c.tables[parameter]; t != nil {
		for i := range t.rows.Blocks {
			add(t.rows.Used(i))
		}
		return pieces, words
	}
	for i := range c.dense[parameter].at {
		add(c.dense[parameter].at[i].words)
	}
	return pieces, words
}

// Ledger is the summary of the cut's ledger, for the checkpoint's meta record.
func (c *Cut) Ledger() ledger.Summary { return c.summary }

// WriteTo hands the cut's sections out, in order, in blocks of at most
// BlockBytes. A block is valid only during the call.
func (c *Cut) WriteTo(emit func(section string, data []byte) error) error {
	if err := emitGob(emit, sectionMeta, &c.meta); err != nil {
		return err
	}
	if err := emitGob(emit, sectionLedger, &c.ledger); err != nil {
		return err
	}
	buffer := make([]byte, 0, BlockBytes)
	for i, pieces := range c.words {
		if err := emitWords(emit, c.names[i], pieces, buffer); err != nil {
			return err
		}
	}
	return nil
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

// emitWords writes words little-endian, in blocks filled to the brim.
func emitWords(emit func(string, []byte) error, section string, pieces [][]float32, buffer []byte) error {
	buffer = buffer[:0]
	for _, piece := range pieces {
		for len(piece) > 0 {
			n := min(len(piece), (BlockBytes-len(buffer))/4)
			buffer = appendWords(buffer, piece[:n])
			piece = piece[n:]
			if len(buffer) < BlockBytes {
				continue
			}
			if err := emit(section, buffer); err != nil {
				return err
			}
			buffer = buffer[:0]
		}
	}
	if len(buffer) == 0 {
		return nil
	}
	return emit(section, buffer)
}

func appendWords(to []byte, words []float32) []byte {
	at := len(to)
	to = to[:at+4*len(words)]
	for i, w := range words {
		binary.LittleEndian.PutUint32(to[at+4*i:], math.Float32bits(w))
	}
	return to
}
