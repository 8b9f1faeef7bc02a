package pserver

import (
	"fmt"
	"math/bits"

	"starfish/internal/hugepage"
	"starfish/job"
)

// A reindexer enters many rows into an index that no cache holds. One after the
// other, in the order of the rows, each would wait for a slot of its own from
// memory. So they are sorted first, runs of them, by the part of the index where
// their home slots are: a part stays in the second cache while its rows enter.
type reindexer struct {
	table *hashed
	// hashes are those of the run's rows; sorted has for each row its hash (upper
	// half) and its number plus one, part by part.
	hashes []uint32
	sorted []uint64
}

const (
	// reindexed is how many rows a run has; 24 MiB hold their order.
	reindexed = 2 << 20
	// indexParts is the number of parts: so few that sorting into them is cheap, so
	// many that a part of the largest usual index is not larger than the cache.
	indexParts = 256
)

// loaded makes the index of the rows that load has added, and checks that each
// belongs here and comes once.
func (t *hashed) loaded() error {
	t.slots = make([]uint32, slotsFor(t.rows.N))
	hugepage.Advise(t.slots)
	run := min(reindexed, t.rows.N)
	x := reindexer{table: t, hashes: make([]uint32, run), sorted: make([]uint64, run)}
	for first := 0; first < t.rows.N; first += reindexed {
		if err := x.sort(first, min(reindexed, t.rows.N-first)); err != nil {
			return err
		}
		if err := x.enter(); err != nil {
			return err
		}
	}
	return nil
}

// sort sorts n rows by the parts of the index.
func (x *reindexer) sort(first, n int) error {
	t, mask := x.table, uint32(len(x.table.slots)-1)
	shift := max(0, bits.Len32(mask)-bits.Len(indexParts-1))
	x.hashes, x.sorted = x.hashes[:n], x.sorted[:n]
	var ends [indexParts + 1]uint32
	for i := range x.hashes {
		key := t.rows.Key(uint32(first + i))
		hash := job.Mix(key)
		if !t.here(key, hash) {
			return fmt.Errorf("%w: key %d of parameter %q does not lie on shard %d", ErrCorrupt, key, t.Name, t.shard)
		}
		x.hashes[i] = uint32(hash)
		ends[uint32(hash)&mask>>shift+1]++
	}
	for p := range indexParts {
		ends[p+1] += ends[p]
	}
	for i, hash := range x.hashes {
		end := &ends[hash&mask>>shift]
		x.sorted[*end] = uint64(hash)<<32 | uint64(first+i+1)
		*end++
	}
	return nil
}

// enter puts the sorted rows into the first free slots of their ways.
func (x *reindexer) enter() error {
	t, slots, mask := x.table, x.table.slots, uint32(len(x.table.slots)-1)
	for _, e := range x.sorted {
		hash, row := uint32(e>>32), uint32(e)
		at := hash & mask
		for ; slots[at] != 0; at = (at + 1) & mask {
			if (slots[at]^hash)&^mask != 0 {
				continue
			}
			if key := t.rows.Key(row - 1); t.rows.Key(slots[at]&mask-1) == key {
				return fmt.Errorf("%w: key %d of parameter %q comes twice", ErrCorrupt, key, t.Name)
			}
		}
		slots[at] = hash&^mask | row
	}
	return nil
}
