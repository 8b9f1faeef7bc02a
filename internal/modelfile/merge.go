package modelfile

import (
	"iter"

	"starfish/job"
)

// merged is the Content of several parts, such as the shards of a job.
type merged struct {
	list  []job.Parameter
	parts []Content
}

// Merge makes one Content of parts that have no row or element in common.
func Merge(list []job.Parameter, parts []Content) Content {
	return &merged{list: list, parts: parts}
}

// Rows is the sum over the parts.
func (m *merged) Rows(parameter int) (n int64) {
	for _, p := range m.parts {
		n += p.Rows(parameter)
	}
	return n
}

// Export merges the parts' runs.
func (m *merged) Export(parameter int) iter.Seq[Run] {
	return func(yield func(Run) bool) {
		var h heads
		for _, part := range m.parts {
			next, stop := iter.Pull(part.Export(parameter))
			defer stop()
			if one := (&head{next: next}); one.advance() {
				h = append(h, one)
			}
		}
		h.order()
		if !m.list[parameter].Sparse {
			h.elements(yield)
			return
		}
		h.rows(yield, width(m.list[parameter]), counts(m.list[parameter]))
	}
}

// head is where the merge stands in one part.
type head struct {
	next func() (Run, bool)
	run  Run
	at   int
}

// key by which heads are ordered.
func (h *head) key() uint64 {
	if h.run.Keys == nil {
		return h.run.First
	}
	return h.run.Keys[h.at]
}

// advance goes to the next run that has something.
func (h *head) advance() bool {
	for h.at = 0; ; {
		var ok bool
		if h.run, ok = h.next(); !ok {
			return false
		}
		if len(h.run.Floats)+len(h.run.Counts) > 0 {
			return true
		}
	}
}

// heads are a heap: the least key is at the front.
type heads []*head

func (h heads) order() {
	for i := len(h)/2 - 1; i >= 0; i-- {
		h.sink(i)
	}
}

func (h heads) sink(i int) {
	for {
		least := i
		for child := 2*i + 1; child <= 2*i+2 && child < len(h); child++ {
			if h[child].key() < h[least].key() {
				least = child
			}
		}
		if least == i {
			return
		}
		h[i], h[least] = h[least], h[i]
		i = least
	}
}

// pass goes on behind the front's run, or drops it at its end.
func (h *heads) pass() {
	if s := *h; !s[0].advance() {
		s[0] = s[len(s)-1]
		*h = s[:len(s)-1]
	}
	h.sink(0)
}

// elements gives whole runs: those of a dense parameter do not overlap.
func (h *heads) elements(yield func(Run) bool) {
	for len(*h) > 0 {
		if !yield((*h)[0].run) {
			return
		}
		h.pass()
	}
}

// mergedRows is how many rows a merged run has.
const mergedRows = 4096

// rows takes row by row from wherever the next key is.
func (h *heads) rows(yield func(Run) bool, dim int, whole bool) {
	out := Run{Keys: make([]uint64, 0, mergedRows)}
	for len(*h) > 0 {
		front := (*h)[0]
		at := front.at * dim
		out.Keys = append(out.Keys, front.key())
		if whole {
			out.Counts = append(out.Counts, front.run.Counts[at:at+dim]...)
		} else {
			out.Floats = append(out.Floats, front.run.Floats[at:at+dim]...)
		}
		if front.at++; front.at < len(front.run.Keys) {
			h.sink(0)
		} else {
			h.pass()
		}
		if len(out.Keys) == mergedRows {
			if !yield(out) {
				return
			}
			out.Keys, out.Floats, out.Counts = out.Keys[:0], out.Floats[:0], out.Counts[:0]
		}
	}
	if len(out.Keys) > 0 {
		yield(out)
	}
}
