package pserver

import (
	"iter"
	"slices"

	"starfish/internal/modelfile"
	"starfish/job"
	"starfish/pserver/optimizer"
)

// exportedRows is how many rows are read under the lock at a time.
const exportedRows = 4096

// Rows is the number of rows of a sparse parameter that the shard holds.
func (s *Shard) Rows(parameter int) int64 {
	if !s.params[parameter].Sparse {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.content.tables[parameter].rows.N)
}

// Flat are the names of the sparse parameters whose tables are flat.
func (s *Shard) Flat() []string {
	names := []string{}
	for _, p := range s.params {
		if p.flat {
			names = append(names, p.Name)
		}
	}
	return names
}

// Export gives what the shard holds of a parameter, in runs: blocks of a dense
// one by index, rows of a sparse one by key. The runs' memory is reused. Each
// is of one moment; together they are if nothing is pushed meanwhile.
func (s *Shard) Export(parameter int) iter.Seq[modelfile.Run] {
	if s.params[parameter].Sparse {
		return s.exportRows(parameter)
	}
	return s.exportBlocks(parameter)
}

func (s *Shard) exportBlocks(parameter int) iter.Seq[modelfile.Run] {
	return func(yield func(modelfile.Run) bool) {
		var r modelfile.Run
		for i, block := range s.params[parameter].blocks {
			r.First = uint64(block) * job.BlockSize
			s.exportBlock(&r, parameter, i)
			if !yield(r) {
				return
			}
		}
	}
}

func (s *Shard) exportBlock(r *modelfile.Run, parameter, i int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, b := s.params[parameter], &s.content.dense[parameter].at[i]
	if p.counts() {
		r.Counts = optimizer.AppendCounts(r.Counts[:0], b.weights(), b.state())
		return
	}
	r.Floats = slices.Grow(r.Floats[:0], b.n)[:b.n]
	p.opt.ReadDense(r.Floats, b.weights(), b.state())
}

func (s *Shard) exportRows(parameter int) iter.Seq[modelfile.Run] {
	return func(yield func(modelfile.Run) bool) {
		var r modelfile.Run
		var at []uint32
		for keys := range slices.Chunk(s.sortedKeys(parameter), exportedRows) {
			at = slices.Grow(at[:0], len(keys))[:len(keys)]
			r.Keys = keys
			s.exportRun(&r, parameter, at)
			if !yield(r) {
				return
			}
		}
	}
}

func (s *Shard) sortedKeys(parameter int) []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content.tables[parameter].index.keys()
}

// exportRun reads the rows of r.Keys; those that are gone, because the shard
// has been loaded anew meanwhile, are left out.
func (s *Shard) exportRun(r *modelfile.Run, parameter int, at []uint32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.content.tables[parameter]
	t.index.find(r.Keys, at)
	t.index.missing(at)
	if slices.Contains(at, optimizer.None) {
		r.Keys = slices.Clone(r.Keys)
		n := 0
		for i, row := range at {
			if row != optimizer.None {
				r.Keys[n], at[n] = r.Keys[i], row
				n++
			}
		}
		r.Keys, at = r.Keys[:n], at[:n]
	}
	if !t.counts() {
		n := len(at) * t.Dim
		r.Floats = slices.Grow(r.Floats[:0], n)[:n]
		t.opt.ReadRows(r.Floats, &t.rows, at)
		return
	}
	r.Counts = r.Counts[:0]
	for _, row := range at {
		words := t.rows.Row(row)
		r.Counts = optimizer.AppendCounts(r.Counts, t.rows.Weights(words), t.rows.State(words))
	}
}

// counts tells whether the parameter holds whole numbers.
func (p *parameter) counts() bool { return p.Optimizer.Type == job.OptimizerCount }
