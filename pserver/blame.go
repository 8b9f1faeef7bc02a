package pserver

import (
	"starfish/internal/wire"
	"starfish/job"
)

// gradient is the largest absolute gradient that a push has at the error's
// place; 0 where it has none.
func (e *NonFiniteError) gradient(ps params, p *wire.PushData) (most float32) {
	see := func(values []float32) {
		for _, x := range values {
			most = max(most, x, -x)
		}
	}
	for i := range p.Dense {
		v := &p.Dense[i]
		at := e.Element - int64(v.Block)*job.BlockSize
		if !e.Sparse && ps[v.Param].Name == e.Parameter && at >= 0 && at < int64(len(v.Values)) {
			see(v.Values[at : at+1])
		}
	}
	for i := range p.Sparse {
		v := &p.Sparse[i]
		if !e.Sparse || ps[v.Param].Name != e.Parameter {
			continue
		}
		dim := ps[v.Param].Dim
		for k, key := range v.Keys {
			if key == e.Row {
				see(v.Values[k*dim : (k+1)*dim])
			}
		}
	}
	return most
}
