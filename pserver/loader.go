package pserver

import (
	"bytes"
	"encoding/gob"
	"encoding/json"
	"fmt"
	"math/bits"
	"reflect"

	"starfish/internal/wire"
	"starfish/job"
	"starfish/pserver/ledger"
)

// Loader builds a shard's content from the sections of a cut. The shard itself
// changes only in Finish, and goes on as it was if a load is given up. It
// allocates by what it is given, not by what a section claims.
type Loader struct {
	shard   *Shard
	content *content
	meta    *cutMeta
	ledger  *ledger.Ledger
	// step is the place in the order of sections: meta, ledger, then the
	// parameters by number.
	step int
	// pending holds the bytes of a section that is decoded as a whole.
	pending bytes.Buffer
	// words counts the words of each parameter that have come; row is the
	// unfinished row of the current table.
	words []int64
	row   []byte
}

// NewLoader begins a load.
func (s *Shard) NewLoader() *Loader {
	l := &Loader{shard: s}
	l.Reset()
	return l
}

// Reset throws away what was added, to begin again with another checkpoint.
func (l *Loader) Reset() {
	*l = Loader{shard: l.shard, content: l.shard.newContent(), words: make([]int64, len(l.shard.params))}
}

// Add takes the next block. Its errors wrap ErrMismatch or ErrCorrupt; after
// one the loader is of no use until it is reset.
func (l *Loader) Add(section string, data []byte) error {
	for l.name(l.step) != section {
		if err := l.closeSection(); err != nil {
			return err
		}
		if l.step++; l.step > len(l.shard.params)+1 {
			return fmt.Errorf("%w: section %q is unknown or out of order", ErrCorrupt, section)
		}
	}
	if l.step < 2 {
		l.pending.Write(data)
		return nil
	}
	if len(data)%4 != 0 {
		return fmt.Errorf("%w: block of %d bytes in section %q", ErrCorrupt, len(data), section)
	}
	return l.addWords(l.step-2, data)
}

// name is the section that belongs to a step.
func (l *Loader) name(step int) string {
	switch step {
	case 0:
		return sectionMeta
	case 1:
		return sectionLedger
	}
	return sectionOf(l.shard.params[step-2])
}

// closeSection decodes the section of the current step, or checks its size.
func (l *Loader) closeSection() error {
	defer l.pending.Reset()
	switch l.step {
	case 0:
		return l.decodeMeta()
	case 1:
		return l.decodeLedger()
	}
	i := l.step - 2
	if l.words[i] != l.meta.Words[i] || len(l.row) > 0 {
		return fmt.Errorf("%w: section %q has %d words, not %d", ErrCorrupt, l.name(l.step), l.words[i], l.meta.Words[i])
	}
	if t := l.content.tables[i]; t != nil {
		return t.index.loaded()
	}
	if d := l.content.dense[i]; l.words[i] != d.words {
		return fmt.Errorf("%w: section %q has %d words, the shard's blocks have %d", ErrCorrupt, l.name(l.step), l.words[i], d.words)
	}
	return nil
}

func (l *Loader) decodeMeta() error {
	m := &cutMeta{}
	if err := gob.NewDecoder(&l.pending).Decode(m); err != nil {
		return fmt.Errorf("%w: section %s: %w", ErrCorrupt, sectionMeta, err)
	}
	s := l.shard
	switch {
	case m.V != cutVersion:
		return fmt.Errorf("%w: version %d, this program reads %d", ErrMismatch, m.V, cutVersion)
	case m.Shard != s.number:
		return fmt.Errorf("%w: shard %d, not %d", ErrMismatch, m.Shard, s.number)
	case m.Lanes != s.lanes:
		return fmt.Errorf("%w: a queue of %d lanes, not %d", ErrMismatch, m.Lanes, s.lanes)
	}
	if err := s.sameParameters(m.Parameters); err != nil {
		return err
	}
	if len(m.Words) != len(s.params) {
		return fmt.Errorf("%w: %d sections for %d parameters", ErrCorrupt, len(m.Words), len(s.params))
	}
	l.meta = m
	return nil
}

// sameParameters compares the record of a checkpoint with the job's.
func (s *Shard) sameParameters(text []byte) error {
	if mine, err := json.Marshal(s.job); err == nil && bytes.Equal(mine, text) {
		return nil
	}
	var p job.Parameters
	if err := json.Unmarshal(text, &p); err != nil {
		return fmt.Errorf("%w: parameters: %w", ErrCorrupt, err)
	}
	if p.V != s.job.V || p.Seed != s.job.Seed || p.Shards != s.job.Shards || len(p.List) != len(s.job.List) {
		return fmt.Errorf("%w: version %d, seed %d, %d shards, %d parameters; the job has %d, %d, %d, %d", ErrMismatch,
			p.V, p.Seed, p.Shards, len(p.List), s.job.V, s.job.Seed, s.job.Shards, len(s.job.List))
	}
	for i := range p.List {
		if !reflect.DeepEqual(p.List[i], s.job.List[i]) {
			return fmt.Errorf("%w: parameter %d is %+v; the job has %+v", ErrMismatch, i, p.List[i], s.job.List[i])
		}
	}
	return nil
}

func (l *Loader) decodeLedger() error {
	var snapshot ledger.Snapshot
	if err := gob.NewDecoder(&l.pending).Decode(&snapshot); err != nil {
		return fmt.Errorf("%w: section %s: %w", ErrCorrupt, sectionLedger, err)
	}
	restored, err := ledger.Restore(snapshot, l.shard.lanes, l.shard.policy)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	l.ledger = restored
	return nil
}

// addWords takes words of a parameter.
func (l *Loader) addWords(parameter int, data []byte) error {
	from := l.words[parameter]
	l.words[parameter] += int64(len(data) / 4)
	if t := l.content.tables[parameter]; t != nil {
		return l.addRows(t, data)
	}
	l.content.dense[parameter].allocate()
	return l.addElements(l.content.dense[parameter], from, data)
}

// addElements writes words into the dense blocks, from a word on. All blocks
// but a parameter's last one have the same size.
func (l *Loader) addElements(d *dense, from int64, data []byte) error {
	for i := 0; i < len(d.at) && len(data) > 0; i++ {
		words := d.at[i].words
		if from >= int64(len(words)) {
			from -= int64(len(words))
			continue
		}
		words = words[from:]
		words = words[:min(len(words), len(data)/4)]
		data, from = data[copy(wire.Bytes(words), data):], 0
	}
	if len(data) > 0 {
		return fmt.Errorf("%w: parameter %q has %d bytes too many", ErrCorrupt, d.Name, len(data))
	}
	return nil
}

// addRows adds the rows that are complete, and keeps the beginning of the next
// one for the block to come.
func (l *Loader) addRows(t *table, data []byte) error {
	size := 4 * t.rows.Words()
	if len(l.row) > 0 {
		n := min(size-len(l.row), len(data))
		l.row, data = append(l.row, data[:n]...), data[n:]
		if len(l.row) < size {
			return nil
		}
		if err := t.index.load(l.row); err != nil {
			return err
		}
	}
	whole := len(data) / size * size
	l.row = append(l.row[:0], data[whole:]...)
	return t.index.load(data[:whole])
}

// load adds rows of a checkpoint. They cannot be found before loaded.
func (t *hashed) load(rows []byte) error {
	size := 4 * t.rows.Stride
	if t.rows.N+len(rows)/size > maxRows {
		return fmt.Errorf("%w: parameter %q has more rows than a table takes", ErrCorrupt, t.Name)
	}
	for len(rows) > 0 {
		rows = rows[copy(wire.Bytes(t.rows.Grow(len(rows)/size)), rows):]
	}
	return nil
}

// here tells whether a key with that hash lies on the table's shard.
func (t *hashed) here(key, hash uint64) bool {
	at, _ := bits.Mul64(hash, uint64(t.of))
	return at == uint64(t.shard) && (t.Bits == 0 || key>>uint(t.Bits) == 0)
}

// Finish checks that everything has come and makes it the shard's content,
// with the ledger marked restored. Pushes that were staged are dropped.
func (l *Loader) Finish() error {
	for ; l.step < len(l.shard.params)+2; l.step++ {
		if err := l.closeSection(); err != nil {
			return err
		}
	}
	l.content.ledger = l.ledger
	s := l.shard
	s.mu.Lock()
	defer s.mu.Unlock()
	for source := range s.staged {
		s.drop(source)
	}
	s.content, s.broken = l.content, nil
	s.account(0)
	return nil
}
