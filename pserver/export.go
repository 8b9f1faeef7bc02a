package pserver

import (
	"iter"
	"slices"

	"starfish/job"
	"starfish/pserver/optimizer"
)

// Export iterates over what the shard holds of one parameter: the elements of
// a dense parameter by index, one a value group, or the rows of a sparse one by
// key. The text is the value group of contract 7.12, its values joined by tabs;
// it is valid until the next step. Counts are integers.
//
// The list of rows is that of the beginning, each value that of the moment at
// which it is read: the whole is consistent while nobody pushes.
func (s *Shard) Export(parameter int) iter.Seq2[uint64, []byte] {
	if s.params[parameter].Sparse {
		return s.exportRows(parameter)
	}
	return s.exportElements(parameter)
}

func (s *Shard) exportElements(parameter int) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		var text []byte
		p := s.params[parameter]
		for i, block := range p.blocks {
			for e := range p.blockLen(block) {
				text = s.elementText(text[:0], parameter, i, e)
				if !yield(uint64(block)*job.BlockSize+uint64(e), text) {
					return
				}
			}
		}
	}
}

func (s *Shard) elementText(to []byte, parameter, block, element int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &s.content.dense[parameter].at[block]
	return s.params[parameter].opt.AppendText(to, b.weights(), b.state(), element)
}

func (s *Shard) exportRows(parameter int) iter.Seq2[uint64, []byte] {
	return func(yield func(uint64, []byte) bool) {
		var text []byte
		for _, key := range s.sortedKeys(parameter) {
			text = s.rowText(text[:0], parameter, key)
			if !yield(key, text) {
				return
			}
		}
	}
}

func (s *Shard) sortedKeys(parameter int) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.content.tables[parameter]
	keys := make([]uint64, t.rows.N)
	for row := range keys {
		keys[row] = t.rows.Key(uint32(row))
	}
	slices.Sort(keys)
	return keys
}

func (s *Shard) rowText(to []byte, parameter int, key uint64) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, at := s.content.tables[parameter], [1]uint32{}
	t.find([]uint64{key}, at[:])
	if at[0] == optimizer.None {
		return to // the shard has been loaded anew meanwhile
	}
	words := t.rows.Row(at[0])
	for i := range t.Dim {
		if i > 0 {
			to = append(to, '\t')
		}
		to = t.opt.AppendText(to, t.rows.Weights(words), t.rows.State(words), i)
	}
	return to
}
