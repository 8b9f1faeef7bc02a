package client

import (
	"errors"
	"fmt"
	"math"
	"sync"

	"starfish/job"
)

// ErrParameters: the job's parameters cannot be laid out.
var ErrParameters = errors.New("client: impossible parameters")

// layout says how the job's parameters lie over the shards. It is immutable
// but for what its batches lend each other.
type layout struct {
	shards int
	dense  []denseLayout  // in the order of the job's list
	tables []tableLayout  // in the order of the job's list
	blocks [][]blockPlace // for each shard the dense blocks that lie there

	mu   sync.Mutex
	idle []*distinct
}

// borrow lends what finds distinct keys; giveBack takes it back.
func (l *layout) borrow() *distinct {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.idle); n > 0 {
		x := l.idle[n-1]
		l.idle = l.idle[:n-1]
		return x
	}
	return &distinct{slots: make([]uint64, smallestIndex)}
}

func (l *layout) giveBack(x *distinct) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.idle = append(l.idle, x)
}

type denseLayout struct {
	param    uint16
	elements int
}

type tableLayout struct {
	param uint16
	dim   int
}

// blockPlace is one block: elements [from, to) of dense parameter `dense`.
type blockPlace struct {
	dense    int
	param    uint16
	block    uint32
	from, to int
}

func newLayout(p job.Parameters) (*layout, error) {
	if p.Shards < 1 || p.Shards > math.MaxInt32 || len(p.List) > math.MaxUint16+1 {
		return nil, fmt.Errorf("%w: %d parameters over %d shards", ErrParameters, len(p.List), p.Shards)
	}
	l := &layout{shards: p.Shards, blocks: make([][]blockPlace, p.Shards)}
	for i, q := range p.List {
		if q.Sparse {
			if q.Dim < 1 {
				return nil, fmt.Errorf("%w: %s has dim %d", ErrParameters, q.Name, q.Dim)
			}
			l.tables = append(l.tables, tableLayout{param: uint16(i), dim: q.Dim})
			continue
		}
		n, err := elements(q)
		if err != nil {
			return nil, err
		}
		l.addDense(uint16(i), q.Name, n)
	}
	return l, nil
}

func elements(p job.Parameter) (int, error) {
	n := 1
	for _, d := range p.Shape {
		if d < 1 || n > math.MaxInt32/d {
			return 0, fmt.Errorf("%w: %s has shape %v", ErrParameters, p.Name, p.Shape)
		}
		n *= d
	}
	return n, nil
}

func (l *layout) addDense(param uint16, name string, elements int) {
	for block, from := 0, 0; from < elements; block, from = block+1, from+job.BlockSize {
		s := job.BlockShard(name, block, l.shards)
		l.blocks[s] = append(l.blocks[s], blockPlace{
			dense: len(l.dense), param: param, block: uint32(block),
			from: from, to: min(from+job.BlockSize, elements),
		})
	}
	l.dense = append(l.dense, denseLayout{param: param, elements: elements})
}
