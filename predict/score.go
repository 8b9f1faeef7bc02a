package predict

import (
	"math"
	"slices"

	"starfish/job"
	"starfish/reader"
	"starfish/trainer/model"
)

// scorer is what one goroutine needs to score.
type scorer struct {
	model model.Model
	step  model.Step
	batch reader.Batch
	one   [1]float64

	// index finds keys that have come before: open addressing, at most half
	// full. An entry is the call's number and the key's place plus one.
	index []uint64
	call  uint32
}

// predict lays the batch out as a trainer does and asks the model.
func (s *scorer) predict(m *Model, b *reader.Batch, out []float64) {
	s.step.Batch = b
	for i, t := range m.tables {
		s.layOut(&s.step.Tables[i], t, s.model.Keys(b, i))
	}
	s.model.Predict(&s.step, out)
	s.step.Batch = nil
}

// layOut finds the distinct keys and reads their rows.
func (s *scorer) layOut(to *model.Table, t *table, keys []uint64) {
	s.begin(len(keys))
	to.Keys = to.Keys[:0]
	to.Slots = slices.Grow(to.Slots[:0], len(keys))[:len(keys)]
	to.Rows = slices.Grow(to.Rows[:0], len(keys)*t.dim)[:len(keys)*t.dim]
	mask, stamp := uint64(len(s.index)-1), uint64(s.call)<<32
	n := 0
	for i, key := range keys {
		hash := job.Mix(key)
		at := hash & mask
		for {
			entry := s.index[at]
			if entry>>32 != stamp>>32 { // free
				s.index[at] = stamp | uint64(n+1)
				to.Keys = append(to.Keys, key)
				t.read(to.Rows[n*t.dim:(n+1)*t.dim], key, hash)
				to.Slots[i] = uint32(n)
				n++
				break
			}
			if place := uint32(entry) - 1; to.Keys[place] == key {
				to.Slots[i] = place
				break
			}
			at = (at + 1) & mask
		}
	}
	to.Rows = to.Rows[:n*t.dim]
}

// begin empties the index and makes room for so many keys.
func (s *scorer) begin(keys int) {
	if s.call == math.MaxUint32 {
		clear(s.index)
		s.call = 0
	}
	s.call++
	if len(s.index) < 2*keys || s.index == nil {
		n := 64
		for n < 2*keys {
			n *= 2
		}
		s.index = make([]uint64, n)
	}
}
